package offline

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// MaxArrivals is the most requests of one simulation.
const MaxArrivals = 2_000_000

// MaxLength is the longest traffic.
const MaxLength = limiter.MaxWindow

// Arrival is one request of the traffic.
type Arrival struct {
	At   int64  // microseconds since the start
	Cost int64  // hits, at least 1
	Key  string // whose counter it asks
}

// Traffic is what can be generated from a specification such as "constant:100/s".
type Traffic struct {
	// Spec is the specification as it was written.
	Spec string
	// End is when the last request of a file comes, 0 for traffic that goes on for as long as it is asked for.
	End time.Duration

	generate generator
}

// generator yields requests by time, until the length in microseconds has passed or yield returns false.
type generator func(length int64, random *rand.Rand, yield func(Arrival) bool)

// kinds are the traffic that needs no file, by name, with an example for people.
var kinds = []struct {
	name, example string
	parse         func(text string) (generator, error)
}{
	{"constant", "constant:100/s", parseConstant},
	{"poisson", "poisson:100/s", parsePoisson},
	{"burst", "burst:50x10s", parseBurst},
	{"step", "step:10/s,100/s@10s", parseSteps},
}

// ParseTraffic reads constant:RATE, poisson:RATE, burst:SIZExEVERY, step:RATE,RATE@TIME,... or the path of a
// *.csv file with lines time_seconds,cost or time_seconds,cost,key. The error says what to write instead; it is
// a *FileError if the file can be read and its content is wrong.
func ParseTraffic(spec string) (*Traffic, error) {
	if strings.HasSuffix(spec, ".csv") {
		return readTraffic(spec)
	}
	name, text, _ := strings.Cut(spec, ":")
	examples := make([]string, len(kinds))
	for i, kind := range kinds {
		examples[i] = kind.example
		if kind.name != name {
			continue
		}
		generate, err := kind.parse(text)
		if err != nil {
			return nil, fmt.Errorf("%q: %w; write it like %s", spec, err, kind.example)
		}
		return &Traffic{Spec: spec, generate: generate}, nil
	}
	return nil, fmt.Errorf("%q is neither a file nor known traffic: write %s, or the path of a log or a .csv file", spec,
		strings.Join(examples, ", "))
}

// Arrivals are the requests before length has passed, by time. Equal seeds make equal requests.
func (t *Traffic) Arrivals(length time.Duration, seed uint64) ([]Arrival, error) {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // the same each time is what is asked for
	var all []Arrival
	t.generate(length.Microseconds(), random, func(a Arrival) bool {
		all = append(all, a)
		return len(all) <= MaxArrivals
	})
	switch {
	case len(all) > MaxArrivals:
		return nil, fmt.Errorf("%q makes more than %d requests in %s; write a shorter --for or a lower rate", t.Spec,
			MaxArrivals, length)
	case len(all) == 0:
		return nil, fmt.Errorf("%q makes no request in %s; write a longer --for or a higher rate", t.Spec, length)
	}
	return all, nil
}

// phase is a time of one rate.
type phase struct {
	from      int64   // microseconds
	perSecond float64 // requests
}

func parseConstant(text string) (generator, error) {
	rate, err := parseRate(text)
	if err != nil {
		return nil, err
	}
	return steady([]phase{{0, rate}}), nil
}

func parseSteps(text string) (generator, error) {
	var phases []phase
	for part := range strings.SplitSeq(text, ",") {
		rateText, fromText, dated := strings.Cut(part, "@")
		rate, err := parseRate(rateText)
		if err != nil {
			return nil, err
		}
		var from time.Duration
		if dated {
			if from, err = words.ParseDuration(fromText); err != nil {
				return nil, fmt.Errorf("%q is not a time", fromText)
			}
		}
		p := phase{from.Microseconds(), rate}
		if len(phases) > 0 && p.from <= phases[len(phases)-1].from || p.from < 0 {
			return nil, fmt.Errorf("%q must come later than the rate before it", part)
		}
		phases = append(phases, p)
	}
	return steady(phases), nil
}

// steady is evenly spaced traffic, from the beginning of each phase.
func steady(phases []phase) generator {
	return func(length int64, _ *rand.Rand, yield func(Arrival) bool) {
		for i, p := range phases {
			end := length
			if i+1 < len(phases) {
				end = min(end, phases[i+1].from)
			}
			for k := 0; p.perSecond > 0; k++ {
				at := p.from + int64(math.Floor(float64(k)*1e6/p.perSecond))
				if at >= end {
					break
				}
				if !yield(Arrival{At: at, Cost: 1}) {
					return
				}
			}
		}
	}
}

func parsePoisson(text string) (generator, error) {
	rate, err := parseRate(text)
	if err != nil {
		return nil, err
	}
	return func(length int64, random *rand.Rand, yield func(Arrival) bool) {
		for at := random.ExpFloat64(); rate > 0 && at*1e6/rate < float64(length); at += random.ExpFloat64() {
			if !yield(Arrival{At: int64(at * 1e6 / rate), Cost: 1}) {
				return
			}
		}
	}, nil
}

func parseBurst(text string) (generator, error) {
	sizeText, everyText, _ := strings.Cut(text, "x")
	size, err := strconv.Atoi(sizeText)
	if err != nil || size < 1 || size > MaxArrivals {
		return nil, fmt.Errorf("%q is not a number of requests from 1 to %d", sizeText, MaxArrivals)
	}
	every, err := words.ParseDuration(everyText)
	if err != nil || every < time.Millisecond {
		return nil, fmt.Errorf("%q is not a time of 1ms or more", everyText)
	}
	return func(length int64, _ *rand.Rand, yield func(Arrival) bool) {
		for at := int64(0); at < length; at += every.Microseconds() {
			for range size {
				if !yield(Arrival{At: at, Cost: 1}) {
					return
				}
			}
		}
	}, nil
}

// parseRate reads a rate such as 100/s, 0.5/s, 6000/m or 10/h, in requests per second.
func parseRate(text string) (perSecond float64, err error) {
	number, unit, _ := strings.Cut(text, "/")
	seconds := map[string]float64{"s": 1, "m": 60, "h": 3600}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || seconds == 0 || !(n >= 0 && n <= 1e9) {
		return 0, fmt.Errorf("%q is not a rate per s, m or h", text)
	}
	return n / seconds, nil
}

// FileError is what is wrong with a line of a traffic file.
type FileError struct {
	File string
	Line int
	Msg  string // what is wrong, and what to write instead
}

// Error is "file:line: message".
func (e *FileError) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg) }

func readTraffic(path string) (*Traffic, error) {
	f, err := os.Open(path) //nolint:gosec // the user names it
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	arrivals, err := readArrivals(path, f)
	if err != nil {
		return nil, err
	}
	last := arrivals[len(arrivals)-1].At
	return &Traffic{
		Spec: path, End: time.Duration(last) * time.Microsecond,
		generate: func(length int64, _ *rand.Rand, yield func(Arrival) bool) {
			before, _ := slices.BinarySearchFunc(arrivals, length, func(a Arrival, at int64) int { return int(a.At - at) })
			slices.Values(arrivals[:before])(yield)
		},
	}, nil
}

// readArrivals reads lines of time_seconds,cost[,key], below an optional heading, and sorts them by time.
func readArrivals(path string, from io.Reader) ([]Arrival, error) {
	reader := csv.NewReader(from)
	reader.FieldsPerRecord = -1
	reader.TrimLeadingSpace = true
	var all []Arrival
	for first := true; ; first = false {
		fields, err := reader.Read()
		if parse := (*csv.ParseError)(nil); errors.As(err, &parse) {
			return nil, &FileError{path, parse.Line, parse.Err.Error() + "; write lines like 1.5,1 or 1.5,1,alice"}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if first && fields[0] == "time_seconds" {
			continue
		}
		a, msg := readArrival(fields)
		if msg == "" && len(all) == MaxArrivals {
			msg = fmt.Sprintf("more than %d requests; write fewer", MaxArrivals)
		}
		if msg != "" {
			line, _ := reader.FieldPos(0)
			return nil, &FileError{path, line, msg}
		}
		all = append(all, a)
	}
	if len(all) == 0 {
		return nil, &FileError{path, 1, "no requests; write one a line, as time_seconds,cost or time_seconds,cost,key"}
	}
	slices.SortStableFunc(all, func(a, b Arrival) int { return int(a.At - b.At) })
	return all, nil
}

// readArrival reads one line; msg says what is wrong with it.
func readArrival(fields []string) (a Arrival, msg string) {
	if len(fields) < 2 || len(fields) > 3 {
		return a, fmt.Sprintf("%d fields; write time_seconds,cost or time_seconds,cost,key", len(fields))
	}
	seconds, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || !(seconds >= 0 && seconds < MaxLength.Seconds()) {
		return a, fmt.Sprintf("time %q is not a number of seconds since the start; write it like 1.5", fields[0])
	}
	cost, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil || cost < 1 || cost > math.MaxUint32 {
		return a, fmt.Sprintf("cost %q is not a whole number from 1 to %d", fields[1], math.MaxUint32)
	}
	a = Arrival{At: int64(math.Round(seconds * 1e6)), Cost: cost}
	if len(fields) == 3 {
		a.Key = fields[2]
	}
	return a, ""
}
