package reload

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// patience is how many times Options.Settle content may keep changing before the Reloader reports it.
const patience = 50

// reading is the result of one read.
type reading struct {
	Snapshot
	err error
}

// id is the same for two readings with the same content, or the same error text.
func (g reading) id() string {
	if g.err != nil {
		return "error: " + g.err.Error()
	}
	return g.Hash
}

func (r *Reloader[T]) read(ctx context.Context) reading {
	snapshot, err := r.o.Source.Read(ctx)
	if err == nil && snapshot.Hash == "" {
		err = errors.New("the source gave no hash; it must make its snapshots with NewSnapshot")
	}
	return reading{snapshot, err}
}

// settle reads until two reads, Settle apart and without a hint between them, return the same. Errors must settle, too:
// a file is often missing for a moment while it is replaced. After the deadline, settle ignores hints, which may come
// without a change, and returns an error if the content still differs.
func (r *Reloader[T]) settle(ctx context.Context, last reading) reading {
	deadline := time.Now().Add(patience * r.o.Settle)
	for {
		r.quiet(ctx, deadline)
		if ctx.Err() != nil {
			return last
		}
		next := r.read(ctx)
		if next.id() == last.id() {
			return next
		}
		if !time.Now().Before(deadline) {
			return reading{err: fmt.Errorf("the files have kept changing for %v; waiting until they stay the same for %v",
				patience*r.o.Settle, r.o.Settle)}
		}
		last = next
	}
}

// quiet returns when there was no hint for Settle. After the deadline it returns in any case.
func (r *Reloader[T]) quiet(ctx context.Context, deadline time.Time) {
	timer := time.NewTimer(r.o.Settle)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-r.changed:
			if time.Now().Before(deadline) {
				timer.Reset(r.o.Settle)
			}
		}
	}
}

// Hint sends on a channel unless something waits in it already: a Source's Watch does so.
func Hint(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}
