package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// patient is a store with a given answer and a given latency.
type patient struct {
	err    atomic.Pointer[error] // nil: it answers
	takes  atomic.Int64          // nanoseconds
	asked  atomic.Int64
	probed atomic.Int64

	explodes atomic.Bool // panics instead
}

var (
	errSilent = fmt.Errorf("%w: redis://there: no answer", limiter.ErrUnavailable)
	errFull   = fmt.Errorf("%w: redis://there: OOM", limiter.ErrUnavailable)
)

func (p *patient) fail(err error) {
	if err == nil {
		p.err.Store(nil)
		return
	}
	p.err.Store(&err)
}

func (p *patient) time() time.Duration { return time.Duration(p.takes.Load()) }

func (p *patient) answer(ctx context.Context) error {
	if p.explodes.Load() {
		panic("boom")
	}
	select {
	case <-time.After(p.time()):
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", limiter.ErrUnavailable, ctx.Err())
	}
	if err := p.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (p *patient) Take(ctx context.Context, _ []limiter.Hit, _ []limiter.Decision) error {
	p.asked.Add(1)
	return p.answer(ctx)
}

// alone is a server that is not a cluster, with this probe.
type alone func(ctx context.Context) error

func (a alone) Probe(ctx context.Context, _ string) error { return a(ctx) }
func (alone) Shard(string) string                         { return "" }

// breaking runs the test with a breaker before a store, in virtual time.
func breaking(t *testing.T, test func(t *testing.T, p *patient, b breakerStore)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &patient{}
		p.takes.Store(int64(10 * time.Millisecond))
		b := breakerOf(p, BreakerOptions{
			Servers: map[string]Server{"": alone(func(ctx context.Context) error {
				p.probed.Add(1)
				ctx, cancel := context.WithTimeout(ctx, 15*time.Millisecond)
				defer cancel()
				return p.answer(ctx)
			})},
			Answered: func(err error) bool { return errors.Is(err, errFull) }, Failures: ofOne,
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.Run(ctx)
		}()
		defer func() { // also of a test that fails: a bubble does not end before its goroutines
			cancel()
			<-ended
		}()
		test(t, p, b)
	})
}

// ofOne calls each for the only server.
func ofOne(err error, each func(server, shard string, why error)) { each("", "", err) }

var anyHit = []limiter.Hit{{}}

// ask calls Take n times in sequence, and returns the last error.
func ask(b breakerStore, n int) (err error) {
	for range n {
		err = b.Take(context.Background(), anyHit, nil)
	}
	return err
}

// While a store is silent, requests wait for it for 50 ms and one timeout, and then no longer. They use it again from
// its first response on, at most 200 ms and a timeout after its recovery.
func TestBreaker(t *testing.T) {
	breaking(t, func(t *testing.T, p *patient, b breakerStore) {
		if err := ask(b, 3); err != nil || b.Open() != 0 {
			t.Fatalf("a store that answers: %v, open %d", err, b.Open())
		}
		p.fail(errSilent)
		start := time.Now()
		for b.Open() == 0 {
			if err := ask(b, 1); !errors.Is(err, errSilent) || errors.Is(err, ErrBreakerOpen) {
				t.Fatalf("a store that fails: %v, want its own error", err)
			}
		}
		if took := time.Since(start); took > silence+2*p.time() {
			t.Errorf("opens after %s, want at most %s", took, silence+2*p.time())
		}
		asked, start := p.asked.Load(), time.Now()
		err := ask(b, 1000)
		want := "the store was not queried, since it does not respond: the last call: " +
			"limit store unavailable: redis://there: no answer"
		if !errors.Is(err, limiter.ErrUnavailable) || err.Error() != want {
			t.Errorf("open: %v, want %s", err, want)
		}
		if took := time.Since(start); took > 0 || p.asked.Load() != asked {
			t.Errorf("open: 1000 requests took %s and asked %d times, want neither", took, p.asked.Load()-asked)
		}

		time.Sleep(time.Minute)
		if n := p.probed.Load(); n < 60*4 || n > 60*5+10 {
			t.Errorf("%d probes in a minute, want about one in %s", n, longestPause+p.time())
		}
		p.fail(nil)
		time.Sleep(longestPause + 2*p.time())
		if err := ask(b, 1); err != nil || b.Open() != 0 {
			t.Errorf("after the store's return: %v, open %d", err, b.Open())
		}
		probed := p.probed.Load()
		time.Sleep(time.Minute)
		if p.probed.Load() != probed {
			t.Error("a store that answers is probed")
		}
	})
}

func TestBreakerStaysClosed(t *testing.T) {
	tests := map[string]func(p *patient, b breakerStore){
		"one failure": func(p *patient, b breakerStore) {
			p.fail(errSilent)
			_ = ask(b, 1)
		},
		"failures at once": func(p *patient, b breakerStore) {
			p.fail(errSilent)
			p.takes.Store(0)
			_ = ask(b, 1000)
		},
		"an answer between failures": func(p *patient, b breakerStore) {
			for range 100 {
				p.fail(errSilent)
				_ = ask(b, 4)
				p.fail(nil)
				_ = ask(b, 1)
			}
		},
		"answers that are errors": func(p *patient, b breakerStore) {
			p.fail(errFull)
			_ = ask(b, 100)
		},
		"callers who go": func(p *patient, b breakerStore) {
			for range 100 {
				ctx, cancel := context.WithCancel(context.Background())
				time.AfterFunc(p.time()/2, cancel)
				_ = b.Take(ctx, anyHit, nil)
			}
		},
	}
	for name, do := range tests {
		t.Run(name, func(t *testing.T) {
			breaking(t, func(t *testing.T, p *patient, b breakerStore) {
				do(p, b)
				if b.Open() != 0 {
					t.Error("is open")
				}
				if p.probed.Load() > 0 {
					t.Error("has probed")
				}
			})
		})
	}
}

// A store that responds more slowly than its timeout has not recovered; a store that responds with errors has.
func TestBreakerProbes(t *testing.T) {
	breaking(t, func(t *testing.T, p *patient, b breakerStore) {
		p.fail(errSilent)
		_ = ask(b, 10)
		p.takes.Store(int64(20 * time.Millisecond)) // the timeout is 15
		time.Sleep(time.Second)                     // a probe that began before is over
		p.fail(nil)
		time.Sleep(time.Second)
		if b.Open() == 0 {
			t.Error("is closed although no call could be answered in time")
		}
		p.takes.Store(int64(14 * time.Millisecond))
		p.fail(errFull)
		time.Sleep(time.Second)
		if b.Open() != 0 {
			t.Error("is open although the store answers")
		}
		p.fail(errSilent)
		if _ = ask(b, 1); b.Open() != 0 {
			t.Error("opens again at the first failure, and not when nothing was answered for a while")
		}
	})
}

// A call whose own deadline passes before the store's timeout counts as unanswered.
func TestBreakerHurriedCallers(t *testing.T) {
	breaking(t, func(t *testing.T, p *patient, b breakerStore) {
		for range 20 {
			ctx, cancel := context.WithTimeout(context.Background(), p.time()/2)
			_ = b.Take(ctx, anyHit, nil)
			cancel()
		}
		if p.asked.Load() == 20 {
			t.Error("each of them was asked for")
		}
	})
}

// Each server of a store has its own breaker.
func TestBreakerOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		here, there := limiter.Hit{}, limiter.Hit{Route: placed{store: "there"}}
		answers := func(context.Context) error { return nil }
		store := storeOf(func(hits []limiter.Hit) error {
			time.Sleep(20 * time.Millisecond)
			if down.Load() && limit.StoreName(&hits[len(hits)-1]) == "there" {
				return errSilent
			}
			return nil
		})
		b := breakerOf(store, BreakerOptions{
			Servers: map[string]Server{"": alone(answers), "there": alone(func(context.Context) error {
				if down.Load() {
					return errSilent
				}
				return nil
			})},
			Answered: func(error) bool { return false },
			Failures: func(err error, each func(server, shard string, why error)) { each("there", "", err) },
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() { b.Run(ctx) })
		defer wait.Wait()
		defer cancel()
		ask := func(hits ...limiter.Hit) error { return b.Take(ctx, hits, nil) }

		down.Store(true)
		asked := 0
		for range 10 { // nobody asks the server that does not answer alone
			if err := ask(here, there); !errors.Is(err, ErrBreakerOpen) {
				asked++
			}
			if err := ask(here); err != nil {
				t.Fatalf("the server that answers: %v", err)
			}
		}
		if most := 1 + int(silence/(20*time.Millisecond)); asked == 0 || asked > most {
			t.Errorf("%d of 10 requests to two servers waited for the one that does not respond, want 1 to %d", asked, most)
		}
		for what, err := range map[string]error{"alone": ask(there), "last": ask(here, there), "first": ask(there, here)} {
			if !errors.Is(err, ErrBreakerOpen) {
				t.Errorf("the server that does not respond, %s: %v, want ErrBreakerOpen", what, err)
			}
		}
		if b.Open() == 0 {
			t.Error("is not open")
		}
		down.Store(false)
		time.Sleep(time.Second)
		if err := ask(here, there); err != nil || b.Open() != 0 {
			t.Errorf("after its return: %v, open %d", err, b.Open())
		}
	})
}

// storeOf is a store that is a function.
type storeOf func(hits []limiter.Hit) error

func (f storeOf) Take(_ context.Context, hits []limiter.Hit, _ []limiter.Decision) error {
	return f(hits)
}

// prompt is a store that answers at once.
type prompt struct{}

func (prompt) Take(context.Context, []limiter.Hit, []limiter.Decision) error { return nil }
