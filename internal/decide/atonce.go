package decide

import (
	"context"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// AtOnce is a limiter.Store that can decide some requests without waiting for a server.
type AtOnce interface {
	limiter.Store
	// Waits reports whether Take may wait for a server.
	Waits() bool
	// TakeAtOnce is Take for a request that can be decided without a server. If it returns false, nothing is charged and
	// out means nothing.
	TakeAtOnce(hits []limiter.Hit, out []limiter.Decision) bool
}

// DecideAtOnce is Decide for a caller that must not wait. If decided is false, the store has to be asked: the caller
// calls DecideRest, on any goroutine. If Options.Store is not an AtOnce, it has to be asked for each request with a
// limit.
func (d *Decider) DecideAtOnce(ctx context.Context, r *Request) (v *Verdict, decided bool, err error) {
	rules := d.o.Rules()
	if rules == nil {
		return nil, true, ErrNoRules
	}
	if v, err = d.Match(rules, r); err != nil {
		return nil, true, err
	}
	store, ok := d.o.Store.(AtOnce)
	switch {
	case len(v.Hits) == 0, ok && !store.Waits():
		v, err = d.DecideRest(ctx, r)
		return v, true, err
	case !ok || v.mayBlock() || !store.TakeAtOnce(v.Hits, v.Decisions):
		return nil, false, nil
	}
	return d.finish(ctx, v), true, nil
}

// DecideRest decides a request that DecideAtOnce has not decided. Errors are as in Decide.
func (d *Decider) DecideRest(ctx context.Context, r *Request) (*Verdict, error) {
	v := &r.verdict
	waits := false
	defer func() {
		if !waits { // also after an error, and if an observer panics
			v.Delay().End()
			v.slot = nil
		}
	}()
	if err := d.take(ctx, v); err != nil {
		return nil, err
	}
	d.finish(ctx, v)
	waits = v.Wait > 0
	return v, nil
}

// DecideLater begins to decide a request that DecideAtOnce has not decided, and returns. w.Taken is called when the
// store has answered, or does not: with its error, the caller calls Finish. If DecideLater returns false, it has done
// nothing: only DecideRest can decide the request. Send has to be called before long.
func (d *Decider) DecideLater(r *Request, w limiter.Waiter) bool {
	v := &r.verdict
	store, ok := d.o.Store.(limiter.Later)
	return ok && !v.mayBlock() && store.TakeLater(v.Hits, v.Decisions, w)
}

// mayBlock reports whether deciding the request may take more than one call to the store: it may have to wait for its
// turn, or give back places although it is denied.
func (v *Verdict) mayBlock() bool {
	return v.anyHit(canWait) || v.anyHit(takesPlaceByItself)
}

// Send has the store send what DecideLater has begun.
func (d *Decider) Send() {
	if store, ok := d.o.Store.(limiter.Later); ok {
		store.Send()
	}
}

// Finish ends what DecideLater has begun, with the error of the store. Its errors are those of Decide; gone is ctx's
// error in one whose caller is gone.
func (d *Decider) Finish(ctx context.Context, r *Request, err, gone error) (*Verdict, error) {
	v := &r.verdict
	if err != nil {
		if err = d.fallBack(ctx, v, err, gone); err != nil {
			return nil, err
		}
	}
	return d.finish(ctx, v), nil
}

// finish folds the store's decisions, shows the verdict to the Observer and the Watchers, and gives back the places
// of a denied request.
func (d *Decider) finish(ctx context.Context, v *Verdict) *Verdict {
	v.fold()
	d.observe(ctx, v)
	if v.Denied {
		// Without an answer of the store, the places are free at the end of their lease.
		_ = d.giveBack(context.WithoutCancel(ctx), v, takesPlaceByItself)
	}
	return v
}
