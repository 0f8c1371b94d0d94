package guard

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// mailbox is a store that decides later: what Take of the store before it would answer, when the test says so.
type mailbox struct {
	limiter.Store
	sent    int
	waiting []func()
}

func (m *mailbox) TakeLater(hits []limiter.Hit, out []limiter.Decision, w limiter.Waiter) bool {
	m.waiting = append(m.waiting, func() { limiter.EndWait(w, m.Take(context.Background(), hits, out)) })
	return true
}

func (m *mailbox) Send() { m.sent++ }

// answer answers all that wait.
func (m *mailbox) answer() {
	all := m.waiting
	m.waiting = nil
	for _, f := range all {
		f()
	}
}

type noted struct {
	err            error
	taken, batches int
	gone           bool
	heard          func() // in Taken; nil: nothing
}

func (n *noted) Taken(err error) {
	n.err, n.taken = err, n.taken+1
	if n.heard != nil {
		n.heard()
	}
}

func (n *noted) BatchTaken()  { n.batches++ }
func (n *noted) IsGone() bool { return n.gone }

// later decides hits by TakeLater before a mailbox, which answers after meanwhile.
func later(
	t *testing.T, s limiter.Later, m *mailbox, meanwhile func(), hits ...limiter.Hit,
) (out []limiter.Decision, asked bool, err error) {
	t.Helper()
	w := &noted{}
	out = make([]limiter.Decision, len(hits))
	if !s.TakeLater(hits, out, w) {
		t.Fatal("cannot be decided later")
	}
	s.Send()
	asked = len(m.waiting) > 0
	if asked && w.taken != 0 {
		t.Fatal("answered before the store")
	}
	if meanwhile != nil {
		meanwhile()
	}
	m.answer()
	if w.taken != 1 || w.batches != 1 {
		t.Fatalf("the waiter heard %d times of the answer and %d times of the batch, want 1 and 1", w.taken, w.batches)
	}
	return out, asked, w.err
}

// Denials are cached, believed and forgotten as with Take.
func TestDenialsLater(t *testing.T) {
	now := func() int64 { return 1 }
	m := &mailbox{Store: memory(t, now)}
	d := believing(m, now)
	p := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	hit := limiter.Hit{Key: "k", Policy: p, N: 1}
	for i, want := range []struct{ allowed, asked bool }{{true, true}, {false, true}, {false, false}} {
		out, asked, err := later(t, d, m, nil, hit)
		if err != nil || out[0].Allowed != want.allowed || asked != want.asked {
			t.Errorf("request %d: %+v, %v, asked %t; want %+v", i, out[0], err, asked, want)
		}
	}
	if d.Answered() != 1 || m.sent != 3 {
		t.Errorf("%d answered from the cache, sent %d times; want 1 and 3", d.Answered(), m.sent)
	}
	// What is given back drops the denial, also one that is on its way.
	d.Forget("k")
	if out, asked, _ := later(t, d, m, func() { d.Forget("k") }, hit); out[0].Allowed || !asked {
		t.Errorf("after a refund: %+v, asked %t", out[0], asked)
	}
	if _, asked, _ := later(t, d, m, nil, hit); !asked {
		t.Error("a denial was cached that is older than a refund")
	}
	if _, asked, _ := later(t, d, m, nil, limiter.Hit{Key: "k", Policy: p, N: -1}); !asked {
		t.Error("a refund did not reach the store")
	}
	if out, asked, _ := later(t, d, m, nil, hit); !out[0].Allowed || !asked {
		t.Errorf("after the refund: %+v, asked %t", out[0], asked)
	}
	known := false
	w := &noted{heard: func() { _, known = d.Cached(hit) }}
	if !d.TakeLater([]limiter.Hit{hit}, make([]limiter.Decision, 1), w) {
		t.Error("cannot be decided later")
	}
	if m.answer(); !known {
		t.Error("a waiter hears of a denial before it is cached")
	}
	d.Believe(false)
	if _, asked, _ := later(t, d, m, nil, hit); !asked {
		t.Error("a denial is believed while refunds are not heard")
	}
	if NewDenials(memory(t, now), now).TakeLater([]limiter.Hit{hit}, make([]limiter.Decision, 1), &noted{}) {
		t.Error("a store that cannot decide later was asked to")
	}
}

// A breaker opens by what is answered later, fails at once while it is open, and takes no cancelled call for silence.
func TestBreakerLater(t *testing.T) {
	breaking(t, func(t *testing.T, p *patient, b *Breaker) {
		m := &mailbox{Store: p}
		b.o.Store = m
		hit := limiter.Hit{Key: "k"}
		p.fail(errSilent)
		for range 2 {
			if _, asked, err := later(t, b, m, nil, hit); !asked || !errors.Is(err, errSilent) {
				t.Errorf("a failure: %v, asked %t", err, asked)
			}
			time.Sleep(silence)
		}
		if _, _, err := later(t, b, m, nil, hit); !errors.Is(err, limiter.ErrUnavailable) {
			t.Errorf("the failure that opens: %v", err)
		}
		if _, asked, err := later(t, b, m, nil, hit); asked || !errors.Is(err, ErrNotAsked) {
			t.Errorf("while it is open: %v, asked %t", err, asked)
		}
		p.fail(nil)
		time.Sleep(2 * longestPause)
		synctest.Wait()
		if _, asked, err := later(t, b, m, nil, hit); !asked || err != nil {
			t.Errorf("after a probe was answered: %v, asked %t", err, asked)
		}
		gone := context.Canceled
		p.fail(gone)
		for range 3 {
			_, _, _ = later(t, b, m, nil, hit)
			time.Sleep(2 * silence)
		}
		if b.Open() != 0 {
			t.Error("cancelled calls opened the breaker")
		}
	})
}

type leasedRoute struct{}

func (leasedRoute) LeaseTime() time.Duration { return time.Second }

// Only requests that no lease may decide are decided later.
func TestLeasesLater(t *testing.T) {
	now := func() int64 { return 1 }
	m := &mailbox{Store: memory(t, now)}
	l := NewLeases(LeasesOptions{Store: m})
	t.Cleanup(func() { _ = l.Close() })
	p := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1000, Window: time.Hour})
	plain, leased := limiter.Hit{Key: "k", Policy: p, N: 1}, limiter.Hit{Key: "l", Policy: p, N: 1, Route: leasedRoute{}}
	if out, asked, err := later(t, l, m, nil, plain); err != nil || !asked || !out[0].Allowed {
		t.Errorf("without leases: %+v, %v, asked %t", out, err, asked)
	}
	if out, asked, err := later(t, l, m, nil, plain, leased); err != nil || !asked || !out[1].Allowed {
		t.Errorf("beside a hit that is not leased: %+v, %v, asked %t", out, err, asked)
	}
	for name, hits := range map[string][]limiter.Hit{"one": {leased}, "two": {leased, leased}} {
		if l.TakeLater(hits, make([]limiter.Decision, len(hits)), &noted{}) {
			t.Errorf("%s: decided later, past its lease", name)
		}
	}
}
