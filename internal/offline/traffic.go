package offline

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/words"
)

// MaxArrivals is the maximum number of requests of one simulation.
const MaxArrivals = 2_000_000

// MaxLength is the maximum duration of traffic.
const MaxLength = step.MaxWindow

// Traffic generates requests according to a specification such as "constant:100/s".
type Traffic struct {
	// Spec is the specification.
	Spec string

	generate generator
}

// generator yields sorted times of requests, in microseconds since the start, until length or yield returns false.
type generator func(length int64, random *rand.Rand, yield func(at int64) bool)

// kinds are the kinds of traffic by name, with an example for error messages.
var kinds = []struct {
	name, example string
	parse         func(text string) (generator, error)
}{
	{"constant", "constant:100/s", parseSteps},
	{"poisson", "poisson:100/s", parsePoisson},
	{"burst", "burst:50x10s", parseBurst},
	{"step", "step:10/s,100/s@10s", parseSteps},
}

// ParseTraffic parses constant:RATE, poisson:RATE, burst:SIZExEVERY or step:RATE,RATE@TIME,....
func ParseTraffic(spec string) (*Traffic, error) {
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
	return nil, fmt.Errorf("%q is not a form of traffic: write one of %s", spec,
		strings.Join(examples, ", "))
}

// Arrivals returns the times of requests within length, in microseconds since the start. seed makes it repeatable.
func (t *Traffic) Arrivals(length time.Duration, seed uint64) ([]int64, error) {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable on purpose
	var all []int64
	t.generate(length.Microseconds(), random, func(at int64) bool {
		all = append(all, at)
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

// phase is a period with one rate.
type phase struct {
	from      int64   // beginning in microseconds since the start
	perSecond float64 // rate in requests per second
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

// steady returns evenly spaced requests, from the beginning of each phase.
func steady(phases []phase) generator {
	return func(length int64, _ *rand.Rand, yield func(int64) bool) {
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
				if !yield(at) {
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
	return func(length int64, random *rand.Rand, yield func(int64) bool) {
		for at := random.ExpFloat64(); rate > 0 && at*1e6/rate < float64(length); at += random.ExpFloat64() {
			if !yield(int64(at * 1e6 / rate)) {
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
	return func(length int64, _ *rand.Rand, yield func(int64) bool) {
		for at := int64(0); at < length; at += every.Microseconds() {
			for range size {
				if !yield(at) {
					return
				}
			}
		}
	}, nil
}

// parseRate parses a rate such as 100/s, 0.5/s, 6000/m or 10/h to requests per second.
func parseRate(text string) (perSecond float64, err error) {
	number, unit, _ := strings.Cut(text, "/")
	seconds := map[string]float64{"s": 1, "m": 60, "h": 3600}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || seconds == 0 || !(n >= 0 && n <= 1e9) {
		return 0, fmt.Errorf("%q is not a rate per s, m or h", text)
	}
	return n / seconds, nil
}
