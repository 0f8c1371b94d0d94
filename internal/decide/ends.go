package decide

import (
	"context"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/sleep"
)

// An end whose call surely did not run is sent again after firstPause, then after pauses that double up to
// longestPause, until retryFor has passed. maxRetried bounds the requests whose ends wait for that.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
	retryFor     = 10 * time.Second
	maxRetried   = 1000
)

// ended is the end of a request for one limit.
type ended struct {
	limit          *descriptors.Limit
	charged, spent int64
}

// sendEndsLater is called if the store failed with err. It sends the request's ends again if the store surely has not
// seen them. Other ends are lost, because an end that is sent twice could be counted twice.
func (d *Decider) sendEndsLater(v *Verdict, err error) {
	var p part
	var ends []ended
	for i := range v.reserved {
		e := &v.reserved[i]
		if e.role != corrects || e.unsent {
			continue
		}
		p.add(v.Hits[i], i)
		ends = append(ends, ended{v.Limits[i], e.charged, e.spent})
		e.role, e.unsent = ignored, true
	}
	if len(ends) == 0 {
		return
	}
	waiting := d.retried.Add(1)
	if d.o.Unasked == nil || !d.o.Unasked(err, len(v.asked.hits)) || waiting > maxRetried {
		d.retried.Add(-1)
		d.loseEnds(ends)
		return
	}
	panics.Go("end of a request", func() {
		defer d.retried.Add(-1)
		d.retry(p, ends)
	})
}

// retry sends ends until the store responds.
func (d *Decider) retry(p part, ends []ended) {
	ctx, began := context.Background(), time.Now()
	for pause := firstPause; time.Since(began) < retryFor; pause = min(2*pause, longestPause) {
		_ = sleep.For(ctx, pause)
		err := d.chain.Take(ctx, p.hits, p.out)
		if err == nil {
			for _, e := range ends {
				d.o.Observer.Ended(e.limit, e.charged, e.spent)
			}
			return
		}
		if !d.o.Unasked(err, len(p.hits)) {
			break
		}
	}
	d.loseEnds(ends)
}

func (d *Decider) loseEnds(ends []ended) {
	for _, e := range ends {
		d.o.Observer.NotEnded(e.limit)
	}
}
