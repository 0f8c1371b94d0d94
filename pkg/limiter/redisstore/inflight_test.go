package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// TestAbandonedRequestsInFlight lets requests give up while Redis hangs, because they are cancelled or their time is
// over. Redis then admits them. The store must release the slots of these requests, because the requests do not know
// them, and no other slots. If a request is cancelled, the store also takes back its charge to a limit with a Reserve.
func TestAbandonedRequestsInFlight(t *testing.T) {
	inFlight := policy(t, limiter.Params{Algorithm: limiter.Concurrency, Limit: 10, Window: time.Hour})
	reserved := policy(t, limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: 10, Window: time.Hour, Align: limiter.AlignFirstHit,
		ChargeDenied: limiter.ChargeNone, Reserve: 5,
	})
	banned := policy(t, limiter.Params{Algorithm: limiter.FixedWindow, DenyAll: true, Window: time.Hour})
	second := in("second")
	place := func(h limiter.Hit) limiter.Hit {
		h.Key, h.Policy, h.N = "inFlight", inFlight, max(h.N, 1)
		return h
	}
	calls := limiter.Hit{Key: "calls", Policy: funnel(t, 1000, time.Hour), N: 1}
	elsewhere := limiter.Hit{Key: "calls", Policy: calls.Policy, N: 1, Route: second}
	ban := limiter.Hit{Key: "ban", Policy: banned, N: 1}
	server, otherServer := redistest.Start(t), redistest.Start(t)
	for name, tc := range map[string][]limiter.Hit{
		"one":                             {place(limiter.Hit{})},
		"three at once":                   {place(limiter.Hit{N: 3})},
		"beside another limit":            {calls, place(limiter.Hit{})},
		"of a denied request":             {place(limiter.Hit{}), ban},
		"in shadow mode":                  {place(limiter.Hit{Mode: limiter.Shadow})},
		"in shadow mode, denied":          {place(limiter.Hit{Mode: limiter.Shadow}), ban},
		"by itself, denied":               {place(limiter.Hit{ByItself: true}), ban},
		"in two stores":                   {place(limiter.Hit{}), elsewhere},
		"in two stores, in shadow mode":   {place(limiter.Hit{Mode: limiter.Shadow}), elsewhere},
		"in two stores, by itself":        {place(limiter.Hit{ByItself: true}), elsewhere},
		"in two stores, of the other one": {calls, place(limiter.Hit{Route: second})},
	} {
		t.Run(name, func(t *testing.T) {
			endsInFlight(t, server, otherServer, tc, context.Canceled)
			endsInFlight(t, server, otherServer, tc, context.DeadlineExceeded)
			for i := range tc {
				if tc[i].Policy == inFlight {
					tc[i].Policy = reserved
				}
			}
			endsInFlight(t, server, otherServer, tc, context.Canceled)
		})
	}
}

// endsInFlight lets requests with these hits give up. why is their error.
func endsInFlight(t *testing.T, server, otherServer *redistest.Server, hits []limiter.Hit, why error) {
	t.Helper()
	redistest.Do(t, server, "flushall")
	redistest.Do(t, otherServer, "flushall")
	prefix, isLate, timeout := why.Error(), errors.Is(why, context.DeadlineExceeded), patient
	if isLate {
		timeout = redisstore.LateAnswer / 4
	}
	group := func(timeout time.Duration) (g *redisstore.Group, s, other *redisstore.Store) {
		o := redisstore.Options{KeyPrefix: prefix, Timeout: timeout}
		s, other = openLate(t, server.URL(), o), openLate(t, otherServer.URL(), o)
		s.ReadLateFor(patient)
		other.ReadLateFor(patient)
		return redisstore.NewGroup(s, map[string]*redisstore.Store{"second": other}), s, other
	}
	g, s, other := group(timeout)
	patientGroup, _, _ := group(patient)
	var has any // the store that has the places
	busy := s   // the same
	var inFlight *limiter.Policy
	for _, h := range hits {
		if h.Key == "inFlight" {
			inFlight = h.Policy
			if h.Route != nil {
				has, busy = h.Route, other
			}
		}
	}
	idle := func() error {
		for _, s := range []*redisstore.Store{s, other} {
			if inFlight, waiting := s.Queued(); inFlight+waiting != 0 {
				return fmt.Errorf("%d calls are under way, and %d wait", inFlight, waiting)
			}
		}
		return nil
	}
	take(t, patientGroup, "inFlight", inFlight, 2, has) // of others, which stay
	take(t, patientGroup, "calls", funnel(t, 1000, time.Hour), 1)
	take(t, patientGroup, "calls", funnel(t, 1000, time.Hour), 1, in("second"))
	for _, route := range []any{nil, in("second")} { // connect, and load the script: a peek takes nothing
		peek := limiter.Hit{Key: "calls", Policy: funnel(t, 1000, time.Hour), Peek: true, Route: route}
		redistest.Await(t, func() error { return (<-ask(t.Context(), g, peek)).err })
	}
	redistest.Await(t, idle)
	server.Pause()
	otherServer.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var answers []<-chan asked
	for i := range redisstore.MaxWorkers + 1 { // the last one waits in the queue
		answer := ask(ctx, g, hits...)
		answers = append(answers, answer)
		redistest.Await(t, func() error {
			if inFlight, waiting := busy.Queued(); inFlight+waiting != i+1 && len(answer) == 0 { // else it has given up
				return fmt.Errorf("%d calls are under way, and %d wait; want %d", inFlight, waiting, i+1)
			}
			return nil
		})
	}
	if !isLate {
		cancel()
	}
	for _, answer := range answers {
		a := <-answer
		if byOwnFault := isLate && errors.Is(a.err, limiter.ErrLate); !errors.Is(a.err, why) && !byOwnFault {
			t.Errorf("a request that gives up: %v, want %v", a.err, why)
		}
	}
	redistest.Await(t, func() error {
		if inFlight := busy.Workers(); isLate && inFlight != 0 {
			return fmt.Errorf("%d workers wait for answers that nobody waits for: the next requests have to wait, too", inFlight)
		}
		return nil
	})
	if inFlight, _ := busy.Queued(); inFlight == 0 {
		t.Error("no late answer is read")
	}
	server.Resume()
	otherServer.Resume()
	redistest.Await(t, idle)
	if got := 10 - take(t, patientGroup, "inFlight", inFlight, 0, has).Remaining; got != 2 {
		t.Errorf("%d places are in use, want the 2 of others", got)
	}
}

// openLate opens a store whose client waits long enough for late replies.
func openLate(t *testing.T, url string, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(redistest.Client(t, url, patient), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
