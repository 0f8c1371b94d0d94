package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

func TestMain(m *testing.M) {
	// While a server is away go-redis tries once a second, and looks only then whether the client was closed.
	casetest.FindLeaks(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// patient is a timeout that a busy machine does not exceed, because these tests check decisions and not speed.
const patient = time.Minute

// open returns a store with its own client, which is closed when the test ends.
func open(tb testing.TB, url string, o redisstore.Options) *redisstore.Store {
	tb.Helper()
	if o.Timeout == 0 {
		o.Timeout = patient
	}
	s, err := redisstore.New(redistest.Client(tb, url, o.Timeout), o)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// counts takes one hit, and returns an error if it was not counted.
func counts(t *testing.T, s *redisstore.Store) error {
	t.Helper()
	hit := []limiter.Hit{{Key: t.Name(), Policy: funnel(t, 1000, time.Hour), N: 1}}
	return s.Take(t.Context(), hit, make([]limiter.Decision, 1))
}

// client returns a client for direct commands to the server.
func client(tb testing.TB, server *redistest.Server) *redis.Client {
	tb.Helper()
	c := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

func policy(tb testing.TB, in limiter.Params) *limiter.Policy {
	tb.Helper()
	in.DenyAll = in.Limit == 0 // a test means it
	p, err := limiter.NewPolicy(in)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func funnel(tb testing.TB, limit int64, window time.Duration) *limiter.Policy {
	tb.Helper()
	return policy(tb, limiter.Params{Algorithm: limiter.Funnel, Limit: limit, Window: window})
}

// take decides one hit, with a Route if one is given.
func take(tb testing.TB, s limiter.Store, key string, p *limiter.Policy, n int64, route ...any) limiter.Decision {
	tb.Helper()
	var out [1]limiter.Decision
	h := limiter.Hit{Key: key, Policy: p, N: n, Peek: n == 0}
	if len(route) > 0 {
		h.Route = route[0]
	}
	if err := s.Take(tb.Context(), []limiter.Hit{h}, out[:]); err != nil {
		tb.Fatal(err)
	}
	return out[0]
}

func fresh(server *redistest.Server) func(t *testing.T, clock *limitertest.Clock) limiter.Store {
	var stores atomic.Int64
	return func(t *testing.T, clock *limitertest.Clock) limiter.Store {
		t.Helper()
		return open(t, server.SocketURL(), redisstore.Options{
			KeyPrefix: fmt.Sprintf("t%d:", stores.Add(1)),
			Now:       clock.Now,
		})
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	limitertest.Run(t, fresh(redistest.Start(t)))
}

// TestScriptsAgreeWithGo compares each decision of the Lua steps with the Go steps.
func TestScriptsAgreeWithGo(t *testing.T) {
	t.Parallel()
	limitertest.Histories(t, fresh(redistest.Start(t)), casetest.Pick(250, 3000))
}

// TestLinearizable lets two and three stores call one server, with three and two goroutines per store.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, processes := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d processes", processes), func(t *testing.T) {
			prefix := fmt.Sprintf("of%d:", processes)
			limitertest.Linearizable(t, processes, casetest.Pick(2, 20),
				func(t *testing.T, clocks []*limitertest.Clock) (stores []limiter.Store) {
					for _, c := range clocks {
						stores = append(stores, open(t, server.SocketURL(), redisstore.Options{KeyPrefix: prefix, Now: c.Now}))
					}
					return stores
				})
		})
	}
}

func TestStateIsDroppedWhenItNoLongerMatters(t *testing.T) {
	server := redistest.Start(t)
	s, c := open(t, server.URL(), redisstore.Options{}), client(t, server)
	take(t, s, "k", funnel(t, 10, time.Minute), 10)
	ttl, err := c.PTTL(t.Context(), "weir:1:k").Result()
	if err != nil {
		t.Fatal(err)
	}
	const shelf = 5 * time.Second // lua/quick_funnel.lua
	if ttl <= 55*time.Second || ttl > time.Minute+shelf+time.Millisecond {
		t.Errorf("a full funnel of a minute expires in %s", ttl)
	}
	take(t, s, "k", funnel(t, 10, time.Minute), -10)
	if n := c.Exists(t.Context(), "weir:1:k").Val(); n != 0 {
		t.Errorf("an emptied funnel is still kept")
	}
}

// calls returns the number of script calls that the server received.
func calls(t *testing.T, c *redis.Client) (n int) {
	t.Helper()
	stats := c.Info(t.Context(), "commandstats").Val()
	for line := range strings.SplitSeq(stats, "\n") {
		name, rest, _ := strings.Cut(line, ":calls=")
		if name == "cmdstat_evalsha" || name == "cmdstat_eval" {
			var k int
			if _, err := fmt.Sscanf(rest, "%d,", &k); err != nil {
				t.Fatal(err)
			}
			n += k
		}
	}
	return n
}

// With UntilDeadline a Take ends before its context's deadline, and its call then does not occupy the connection.
func TestUntilDeadline(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server.URL(), redisstore.Options{Timeout: 10 * time.Minute, UntilDeadline: true})
	p := funnel(t, 1000, time.Hour)
	hits := []limiter.Hit{{Key: "k", Policy: p, N: 1}, {Key: "l", Policy: p, N: 1}}
	out := make([]limiter.Decision, 2)
	redistest.Await(t, func() error { return s.Take(t.Context(), hits, out) })
	server.Pause()
	for range 5 { // one more than may be under way
		// The caller itself never goes. How much earlier than its deadline a Take ends, TestRequestsAreGivenUp says.
		err := s.Take(announced{t.Context(), time.Now().Add(time.Second)}, hits[:1], out)
		if !errors.Is(err, limiter.ErrUnavailable) {
			t.Errorf("hung server: %v, want ErrUnavailable", err)
		}
	}
	server.Resume()
	redistest.Await(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return s.Take(ctx, hits, out)
	})
}

// announced is a context that has a deadline but does not end at it.
type announced struct {
	context.Context //nolint:containedctx // it is a context
	deadline        time.Time
}

func (a announced) Deadline() (deadline time.Time, ok bool) { return a.deadline, true }

func BenchmarkTake(b *testing.B) {
	s := open(b, redistest.Start(b).SocketURL(), redisstore.Options{})
	hit := []limiter.Hit{{Key: "k", Policy: policy(b, limiter.Params{
		Algorithm: limiter.Funnel, Limit: 1_000_000,
		Window: time.Second,
	}), N: 1}}
	var out [1]limiter.Decision
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Take(b.Context(), hit, out[:]); err != nil {
			b.Fatal(err)
		}
	}
}

// Ping fails on a server that replies but cannot count.
func TestPingOfServerThatCannotCount(t *testing.T) {
	server := redistest.Start(t)
	direct := client(t, server)
	do := func(t *testing.T, command string) {
		t.Helper()
		if err := direct.Do(t.Context(), words(command)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ name, spoil, repair, want string }{
		{"full", "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM"},
		{"replica", "REPLICAOF 127.0.0.1 1", "REPLICAOF no one", "READONLY"},
		{"no scripts", "ACL SETUSER default -eval -evalsha", "ACL SETUSER default +eval +evalsha", "NOPERM"},
		{"scripts that may not read", "ACL SETUSER default -mget", "ACL SETUSER default +mget", "can't run"},
		{"scripts that may not write", "ACL SETUSER default -set", "ACL SETUSER default +set", "can't run"},
		{"scripts that may not delete", "ACL SETUSER default -del", "ACL SETUSER default +del", "can't run"},
		{"scripts that may not ask the time", "ACL SETUSER default -time", "ACL SETUSER default +time", "can't run"},
		{"other keys", "ACL SETUSER default resetkeys ~other:*", "ACL SETUSER default allkeys", "NOPERM"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, server.URL(), redisstore.Options{Timeout: 5 * time.Second})
			probe := func(ctx context.Context) error { return s.Probe(ctx, "funnel|shop|user=a") }
			for name, ping := range map[string]func(context.Context) error{"Ping": s.Ping, "Probe": probe} {
				if name == "Probe" && strings.Contains(tt.spoil, "-del") {
					continue // concurrent pings leave hits in the counter, so that no refund deletes it
				}
				do(t, tt.spoil)
				err := ping(t.Context())
				do(t, tt.repair)
				if !errors.Is(err, limiter.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), tt.want) {
					t.Errorf("%s is %v, want ErrUnavailable and %s", name, err, tt.want)
				}
				if err := ping(t.Context()); err != nil {
					t.Errorf("%s afterwards is %v", name, err)
				}
			}
		})
	}
}

// TestLeastPrivilege checks the list of commands in docs/operate/redis.md.
func TestLeastPrivilege(t *testing.T) {
	const least = "+eval +evalsha +get +mget +set +del +time"
	t.Run("all", func(t *testing.T) { testLeastPrivilege(t, least+" +setrange") })
	t.Run("without SETRANGE, which only saves time", func(t *testing.T) { testLeastPrivilege(t, least) })
}

func testLeastPrivilege(t *testing.T, commands string) {
	server := redistest.Start(t)
	acl := append([]any{"ACL", "SETUSER", "least", "on", ">secret", "~weir:*"}, words(commands)...)
	if err := client(t, server).Do(t.Context(), acl...).Err(); err != nil {
		t.Fatal(err)
	}
	s := open(t, "redis://least:secret@"+server.Addr()+"/0", redisstore.Options{})
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	var out [1]limiter.Decision
	for a := limiter.FixedWindow; a <= limiter.SlidingLog; a++ {
		for reserve := range int64(2) {
			p := policy(t, limiter.Params{Algorithm: a, Limit: 3, Window: time.Hour, Reserve: reserve})
			for _, n := range []int64{1, 1, 1, 1, -3} { // writes, changes, denies, deletes
				if err := s.Take(t.Context(), []limiter.Hit{{Key: a.String(), Policy: p, N: n, Peek: n == 0}}, out[:]); err != nil {
					t.Errorf("%s: %v", a, err)
				}
			}
		}
	}
}

func words(text string) (all []any) {
	for word := range strings.FieldsSeq(text) {
		all = append(all, word)
	}
	return all
}
