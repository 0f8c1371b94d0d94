package offline

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Bounds of memory. Of a waiting line, only its time and descriptors are in memory.
const (
	maxWaiting = 10_000 // number of lines to sort
	maxBad     = 5      // number of invalid lines to show
)

// LogOptions describe an access log of Envoy.
type LogOptions struct {
	// Mappings describe the descriptors that Envoy sends for a request.
	Mappings [][]Mapping
	// Domain is the domain of Envoy's filter. TimeField is the field with a request's time.
	Domain, TimeField string
}

// Log is the summary of a log.
type Log struct {
	// From and To are the times of the first and the last request.
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Requests int64     `json:"requests"`
	Lines    int64     `json:"lines"`
	// WithoutDescriptor is the number of lines without a descriptor, for which Envoy would not call Weir.
	WithoutDescriptor int64     `json:"lines_without_descriptor"`
	BadLines          int64     `json:"lines_bad"`
	Bad               []BadLine `json:"bad,omitempty"` // the first maxBad invalid lines
}

// BadLine is a line that was skipped.
type BadLine struct {
	Line  int64  `json:"line"`
	Error string `json:"error"`
}

// ReadLog calls do with each request of a log, in the order of their times. It reads the log as a stream. If do fails,
// the line counts as bad. ReadLog returns an error if reading fails or no line is valid.
func ReadLog(ctx context.Context, in io.Reader, o LogOptions, do func(*Request) error) (*Log, error) {
	r := &reader{LogOptions: o, do: do}
	err := eachLine(in, func(number int64, line []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.line(number, line)
		return nil
	})
	for err == nil && len(r.waiting) > 0 {
		r.next()
	}
	if err != nil {
		return nil, err
	}
	if r.log.Requests == 0 && r.log.BadLines > 0 {
		return nil, fmt.Errorf("no line can be used; line %d: %s", r.log.Bad[0].Line, r.log.Bad[0].Error)
	}
	return &r.log, nil
}

// reader reads a log.
type reader struct {
	LogOptions

	log     Log
	do      func(*Request) error
	now     int64       // time of the last request
	waiting []*recorded // sorted by time
}

// recorded is the request of one line.
type recorded struct {
	Request

	line int64
}

// line sorts a line's request into waiting, and replays the earliest one if maxWaiting is exceeded.
func (r *reader) line(number int64, text []byte) {
	if text != nil && len(strings.TrimSpace(string(text))) == 0 {
		return
	}
	r.log.Lines++
	q, err := (*recorded)(nil), fmt.Errorf("is longer than %d bytes", maxLine)
	if text != nil {
		q, err = r.parse(text)
	}
	if err != nil {
		r.bad(number, err)
		return
	}
	if len(q.Descriptors) == 0 {
		r.log.WithoutDescriptor++
		return
	}
	q.line = number
	at, _ := slices.BinarySearchFunc(r.waiting, q.At+1, func(w *recorded, at int64) int { return cmp.Compare(w.At, at) })
	r.waiting = slices.Insert(r.waiting, at, q) // after requests with the same time
	if len(r.waiting) > maxWaiting {
		r.next()
	}
}

func (r *reader) bad(number int64, err error) {
	r.log.BadLines++
	if len(r.log.Bad) < maxBad {
		r.log.Bad = append(r.log.Bad, BadLine{number, err.Error()})
	}
}

// next replays the earliest waiting request.
func (r *reader) next() {
	q := r.waiting[0]
	r.waiting[0], r.waiting = nil, r.waiting[1:]
	switch {
	case r.now == 0:
		r.log.From = time.UnixMicro(q.At).UTC()
	case q.At < r.now:
		r.bad(q.line, fmt.Errorf("is more than %d lines out of order", maxWaiting))
		return
	}
	r.now = q.At
	r.log.To = time.UnixMicro(q.At).UTC()
	if err := r.do(&q.Request); err != nil {
		r.bad(q.line, err)
		return
	}
	r.log.Requests++
}
