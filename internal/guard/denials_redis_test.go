package guard

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// replica is a process's store and its guard.
type replica struct {
	*Denials
	mu    sync.Mutex
	hears bool
	why   error
}

// start makes a replica that listens until the test ends.
func start(t *testing.T, url string) *replica {
	t.Helper()
	s, err := redisstore.New(redistest.Client(t, url, 5*time.Second), redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{Denials: NewDenials(s, nil)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		s.Refunds(ctx, func(key string, _ bool) { r.Forget(key) }, func(yes bool, why error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.hears, r.why = yes, why
			r.Believe(yes)
		})
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return r
}

// waitFor polls until f says "".
func waitFor(t *testing.T, within time.Duration, f func() string) {
	t.Helper()
	var why string
	for begin := time.Now(); time.Since(begin) < within; time.Sleep(2 * time.Millisecond) {
		if why = f(); why == "" {
			return
		}
	}
	t.Fatalf("after %s: %s", within, why)
}

func (r *replica) heard(t *testing.T, want bool, within time.Duration) {
	t.Helper()
	waitFor(t, within, func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.hears != want {
			return fmt.Sprintf("hears of refunds: %t (%v), want %t", r.hears, r.why, want)
		}
		return ""
	})
}

func (r *replica) take(t *testing.T, key string, p *limiter.Policy, n int64) limiter.Decision {
	t.Helper()
	var out [1]limiter.Decision
	if err := r.Take(t.Context(), []limiter.Hit{{Key: key, Policy: p, N: n, Look: n == 0}}, out[:]); err != nil {
		t.Fatal(err)
	}
	return out[0]
}

func operator(t *testing.T, server *redistest.Server) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// scripts is how many script calls the server has had.
func scripts(t *testing.T, c *redis.Client) (n int) {
	t.Helper()
	_, stat, _ := strings.Cut(c.Info(t.Context(), "commandstats").Val(), "cmdstat_evalsha:calls=")
	_, _ = fmt.Sscanf(stat, "%d,", &n) // none yet: 0
	return n
}

func TestFloodCostsRedisNothing(t *testing.T) {
	server := redistest.Start(t)
	r, c := start(t, server.SocketURL()), operator(t, server)
	r.heard(t, true, 30*time.Second)
	p := policy(t, limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: 2, Window: 24 * time.Hour,
		Align: limiter.AlignFirstHit,
	})
	admitted := 0
	for i := range 100_000 {
		if r.take(t, strconv.Itoa(i%100), p, 1).Allowed {
			admitted++
		}
	}
	if admitted != 200 {
		t.Errorf("%d admitted under 100 limits of 2", admitted)
	}
	if n := scripts(t, c); n > 310 { // 200 admitted, 100 denied, and the script's loading
		t.Errorf("100,000 requests on 100 limited counters made %d script calls, want about 300", n)
	}
}

// A refund by one process is heard by the other at once.
func TestRefundIsHeardByOthers(t *testing.T) {
	server := redistest.Start(t)
	a, b := start(t, server.URL()), start(t, server.SocketURL())
	a.heard(t, true, 30*time.Second)
	b.heard(t, true, 30*time.Second)
	p := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	for i := range 20 {
		key := fmt.Sprint("k", i)
		a.take(t, key, p, 1)
		b.take(t, key, p, 1)
		if d := b.take(t, key, p, 1); d.Allowed {
			t.Fatalf("%+v", d)
		}
		a.take(t, key, p, -1)
		waitFor(t, 30*time.Second, func() string {
			if !b.take(t, key, p, 0).Allowed {
				return "the other process still denies what was given back"
			}
			return ""
		})
	}
	if b.Answered() < 20 {
		t.Errorf("%d denials answered without Redis: the test proves nothing", b.Answered())
	}
}

// While refunds may be missed, nothing is answered without Redis.
func TestLostConnectionIsNoticed(t *testing.T) {
	server := redistest.Start(t)
	r, c := start(t, server.URL()), operator(t, server)
	r.heard(t, true, 30*time.Second)
	p := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	r.take(t, "k", p, 1)
	r.take(t, "k", p, 1)
	if n := r.Answered(); n != 0 {
		t.Fatalf("%d answered without Redis before anything was known", n)
	}

	for name, lose := range map[string]func(){
		"killed": func() {
			if err := c.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
				t.Fatal(err)
			}
			r.heard(t, false, 30*time.Second)
		},
		"hung": func() {
			server.Pause()
			r.heard(t, false, 30*time.Second) // two seconds, and more on a busy machine
			server.Resume()
		},
	} {
		r.take(t, "k", p, 1)
		before := r.Answered()
		r.take(t, "k", p, 1)
		if r.Answered() != before+1 {
			t.Errorf("%s: before, a cached denial was not answered by the guard", name)
		}
		lose()
		r.heard(t, true, 30*time.Second)
		before = r.Answered()
		r.take(t, "k", p, 1)
		if r.Answered() != before {
			t.Errorf("%s: what was known before is believed afterwards", name)
		}
	}
}

// A user who may not subscribe counts as ever, and is told why nothing is answered without Redis.
func TestRightToTheChannelIsMissing(t *testing.T) {
	server := redistest.Start(t)
	acl := []any{
		"ACL", "SETUSER", "least", "on", ">secret", "~weir:*",
		"+eval", "+evalsha", "+mget", "+set", "+del", "+time", "+publish", "+subscribe", "+ping", "resetchannels",
	}
	if err := operator(t, server).Do(t.Context(), acl...).Err(); err != nil {
		t.Fatal(err)
	}
	r := start(t, "redis://least:secret@"+server.Addr()+"/0")
	waitFor(t, 30*time.Second, func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !errors.Is(r.why, limiter.ErrUnavailable) || !strings.Contains(fmt.Sprint(r.why), "NOPERM") ||
			!strings.Contains(fmt.Sprint(r.why), "weir:1:refunds") {
			return fmt.Sprintf("%v, want an error that names the right and the channel", r.why)
		}
		return ""
	})
	p := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	for i, want := range []bool{true, false, false} {
		if d := r.take(t, "k", p, 1); d.Allowed != want {
			t.Errorf("request %d: %+v", i, d)
		}
	}
	if d := r.take(t, "k", p, -1); !d.Allowed || d.Remaining != 1 || r.Answered() != 0 {
		t.Errorf("a refund: %+v, %d answered without Redis", d, r.Answered())
	}
	if err := operator(t, server).Do(t.Context(), "ACL", "SETUSER", "least", "&weir:*").Err(); err != nil {
		t.Fatal(err)
	}
	r.heard(t, true, 30*time.Second) // these are the rights that docs/operate/redis.md lists
}
