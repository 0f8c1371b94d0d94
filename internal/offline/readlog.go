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

// Bounds of what is held in memory. Of a line that waits only the fields of its descriptors are held.
const (
	maxWaiting = 10_000 // lines that are put in order
	maxBad     = 5      // lines that are shown
)

// LogOptions describe an access log of Envoy.
type LogOptions struct {
	// Mappings are the descriptors that Envoy makes of a request.
	Mappings [][]Mapping
	// Domain is that of Envoy's filter. TimeField is the field with a request's time.
	Domain, TimeField string
}

// Log is what was read of a log.
type Log struct {
	// From and To are the times of the first and the last request.
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Requests int64     `json:"requests"`
	Lines    int64     `json:"lines"`
	// NotAsked is how many lines are of no request that Envoy asks about, because it has no descriptor.
	NotAsked int64     `json:"lines_not_asked"`
	BadLines int64     `json:"lines_bad"`
	Bad      []BadLine `json:"bad,omitempty"` // the first ones
}

// BadLine is a line that was not replayed.
type BadLine struct {
	Line  int64  `json:"line"`
	Error string `json:"error"`
}

// ReadLog calls do with each request of a log, in the order of their times. The log is read once, and not held in
// memory. An error of do makes the request's line a bad one. The error is of reading, or says that no line is of use.
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
		return nil, fmt.Errorf("no line is of use; line %d: %s", r.log.Bad[0].Line, r.log.Bad[0].Error)
	}
	return &r.log, nil
}

// reader reads a log.
type reader struct {
	LogOptions

	log     Log
	do      func(*Request) error
	now     int64       // the last request's time
	waiting []*recorded // by time
}

// recorded is the request of a line.
type recorded struct {
	Request

	line int64
}

// line puts a line's request in order, and replays those that no later line can precede.
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
		r.log.NotAsked++
		return
	}
	q.line = number
	at, _ := slices.BinarySearchFunc(r.waiting, q.At+1, func(w *recorded, at int64) int { return cmp.Compare(w.At, at) })
	r.waiting = slices.Insert(r.waiting, at, q) // behind those of its time
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

// next replays the earliest of the waiting requests.
func (r *reader) next() {
	q := r.waiting[0]
	r.waiting[0], r.waiting = nil, r.waiting[1:]
	switch {
	case r.now == 0:
		r.log.From = time.UnixMicro(q.At).UTC()
	case q.At < r.now:
		r.bad(q.line, fmt.Errorf("is more than %d lines behind its time", maxWaiting))
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
