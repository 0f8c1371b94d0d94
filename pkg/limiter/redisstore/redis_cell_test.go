package redisstore_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// byModule is the route of hits that the redis-cell module decides.
var byModule = redisstore.Route{RedisCell: true}

// cell returns a funnel for the redis-cell module.
func cell(tb testing.TB, limit int64, window time.Duration, burst int64) *limiter.Policy {
	tb.Helper()
	return policy(tb, limiter.Params{Algorithm: limiter.Funnel, Limit: limit, Window: window, Burst: burst})
}

// cellSlack is the maximum by which the times of a redis-cell limit are too long, because the times to live of its keys
// are milliseconds that are rounded down twice.
const cellSlack = 2 * time.Millisecond

// about reports whether got is the decision want, after some time has passed since want.
func about(want, got limiter.Decision) bool {
	const passed = 200 * time.Millisecond
	near := func(want, got time.Duration) bool {
		if want == limiter.Never || want == 0 {
			return want == got
		}
		return got > want-passed && got <= want+cellSlack
	}
	return got.Allowed == want.Allowed && got.Remaining == want.Remaining && near(want.RetryAfter, got.RetryAfter) &&
		near(want.ResetAfter, got.ResetAfter)
}

// TestRedisCell takes one hit after the other, and checks the decisions of CL.THROTTLE.
func TestRedisCell(t *testing.T) {
	server := redistest.StartRedisCell(t)
	s, c := open(t, server.URL(), redisstore.Options{}), client(t, server)
	p := cell(t, 30, time.Minute, 16)
	const none, never = 0, limiter.Never
	for _, tt := range []struct {
		name string
		n    int64
		want limiter.Decision
	}{
		{"peek at what is new", 0, limiter.Decision{Allowed: true, Remaining: 16}},
		{"one", 1, limiter.Decision{Allowed: true, Remaining: 15, ResetAfter: 2 * time.Second}},
		{"peek", 0, limiter.Decision{Allowed: true, Remaining: 15, ResetAfter: 2 * time.Second}},
		{"several", 10, limiter.Decision{Allowed: true, Remaining: 5, ResetAfter: 22 * time.Second}},
		{"too many for now", 8, limiter.Decision{Remaining: 5, RetryAfter: 6 * time.Second, ResetAfter: 22 * time.Second}},
		{"too many for ever", 17, limiter.Decision{Remaining: 5, RetryAfter: never, ResetAfter: 22 * time.Second}},
		{
			"so many that the module's numbers overflow", limiter.MaxHits,
			limiter.Decision{Remaining: 5, RetryAfter: never, ResetAfter: 22 * time.Second},
		},
		{"the rest", 5, limiter.Decision{Allowed: true, Remaining: 0, ResetAfter: 32 * time.Second}},
		{"peek at what is full", 0, limiter.Decision{
			Remaining: 0, RetryAfter: 2 * time.Second,
			ResetAfter: 32 * time.Second,
		}},
		{"give some back", -6, limiter.Decision{Allowed: true, Remaining: 6, ResetAfter: 20 * time.Second}},
		{"give more back than was taken", -11, limiter.Decision{Allowed: true, Remaining: 16}},
		{"peek at a counter without hits", 0, limiter.Decision{Allowed: true, Remaining: 16}},
		{"refund what was not taken", -limiter.MaxHits, limiter.Decision{Allowed: true, Remaining: 16}},
		{"all", 16, limiter.Decision{Allowed: true, Remaining: none, ResetAfter: 32 * time.Second}},
		{"one more", 1, limiter.Decision{RetryAfter: 2 * time.Second, ResetAfter: 32 * time.Second}},
	} {
		if got := take(t, s, "k", p, tt.n, byModule); !about(tt.want, got) {
			t.Errorf("%s (%d): %+v, want %+v", tt.name, tt.n, got, tt.want)
		}
	}
	if ttl := c.PTTL(t.Context(), "weir:1:k").Val(); ttl <= 31*time.Second || ttl > 32*time.Second {
		t.Errorf("a full funnel of 32s expires in %s", ttl)
	}
	if n := stats(t, c, "cl.throttle").calls; n < 10 {
		t.Errorf("CL.THROTTLE was called %d times: it does not decide", n)
	}
}

// TestRedisCellGivenBackWholeIsForgotten refunds everything. The module alone would leave the key forever.
func TestRedisCellGivenBackWholeIsForgotten(t *testing.T) {
	server := redistest.StartRedisCell(t)
	s, c := open(t, server.URL(), redisstore.Options{}), client(t, server)
	for i, given := range []int64{-1, -2, -3, -7} {
		key := strconv.Itoa(i)
		take(t, s, key, cell(t, 1, time.Second, 7), 1, byModule)
		take(t, s, key, cell(t, 1, time.Second, 7), given, byModule)
		if n := c.Exists(t.Context(), "weir:1:"+key).Val(); n != 0 {
			t.Errorf("after 1 and %d hits the key is still there", given)
		}
	}
}

// TestRedisCellGivenBackALittleLate refunds so late that the module rounds a negative time to live to 0, without error.
func TestRedisCellGivenBackALittleLate(t *testing.T) {
	server := redistest.StartRedisCell(t)
	s, c := open(t, server.URL(), redisstore.Options{}), client(t, server)
	p := cell(t, 1, time.Second, 7)
	for i := range 40 {
		key := strconv.Itoa(i)
		empty := time.Now().Add(time.Second - time.Duration(i)*100*time.Microsecond)
		if err := c.Set(t.Context(), "weir:1:"+key, empty.UnixNano(), time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		take(t, s, key, p, -1, byModule)
		if ttl := c.PTTL(t.Context(), "weir:1:"+key).Val(); ttl == -1 {
			t.Fatalf("a second that was refunded %d us late is kept for ever", 100*i)
		}
	}
}

// TestRedisCellOverflow takes 59 times 10 years, which overflows the module's 64 bits to half of 10 years.
func TestRedisCellOverflow(t *testing.T) {
	s := open(t, redistest.StartRedisCell(t).URL(), redisstore.Options{})
	p := cell(t, 1, step.MaxWindow, 5)
	take(t, s, "k", p, 2, byModule)
	if d := take(t, s, "k", p, 59, byModule); d.Allowed || d.Remaining != 3 || d.RetryAfter != limiter.Never {
		t.Errorf("59 hits on a burst of 5: %+v", d)
	}
	if d := take(t, s, "k", p, 1, byModule); d.Remaining != 2 {
		t.Errorf("one more: %+v", d)
	}
	if d := take(t, s, "k", p, -59, byModule); d.Remaining != 5 {
		t.Errorf("59 refunded: %+v", d)
	}
}

// TestRedisCellUndoneKeyExpires checks that a key that a denied request restores keeps its time to live.
func TestRedisCellUndoneKeyExpires(t *testing.T) {
	server := redistest.StartRedisCell(t)
	s, c := open(t, server.URL(), redisstore.Options{}), client(t, server)
	p := cell(t, 1, time.Minute, 5)
	take(t, s, "m", p, 2, byModule)
	before := c.Get(t.Context(), "weir:1:m").Val()
	hits := []limiter.Hit{{Key: "m", Policy: p, Route: byModule, N: 2}, {Key: "o", Policy: funnel(t, 0, time.Hour), N: 1}}
	if err := s.Take(t.Context(), hits, make([]limiter.Decision, 2)); err != nil {
		t.Fatal(err)
	}
	if after := c.Get(t.Context(), "weir:1:m").Val(); after != before {
		t.Errorf("a denied request left %s, it was %s", after, before)
	}
	if ttl := c.PTTL(t.Context(), "weir:1:m").Val(); ttl < 119*time.Second || ttl > 2*time.Minute {
		t.Errorf("the key of a denied request expires in %s, want 2m0s", ttl)
	}
}

// failing takes hits, and checks that the error contains want.
func failing(t *testing.T, s *redisstore.Store, want string, hits ...limiter.Hit) {
	t.Helper()
	err := s.Take(t.Context(), hits, make([]limiter.Decision, len(hits)))
	if !errors.Is(err, limiter.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("got %v, want an ErrUnavailable that says %q", err, want)
	}
}

func TestRedisCellMissing(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server.URL(), redisstore.Options{})
	for n, want := range map[int64]limiter.Decision{
		-1: {Allowed: true}, 0: {RetryAfter: limiter.Never},
		1: {RetryAfter: limiter.Never},
	} {
		if diff := cmp.Diff(want, take(t, s, "ban", cell(t, 0, time.Second, 0), n, byModule)); diff != "" {
			t.Errorf("%d on a ban, which needs no module: (-want +got)\n%s", n, diff)
		}
	}
	const want = "this Redis has no redis-cell module: load it (loadmodule /path/to/libredis_cell.so), or remove engine: redis_cell from the rule"
	p, own := cell(t, 5, time.Second, 5), funnel(t, 5, time.Hour)
	for _, n := range []int64{1, 0, -1} {
		failing(t, s, want, limiter.Hit{Key: "k", Policy: p, Route: byModule, N: n, Peek: n == 0})
	}
	failing(t, s, want, limiter.Hit{Key: "own", Policy: own, N: 1},
		limiter.Hit{Key: "k", Policy: p, Route: byModule, N: 1})
	if left := take(t, s, "own", own, 0).Remaining; left != 5 {
		t.Errorf("a request that failed was charged: %d left of 5", left)
	}
}

func TestRedisCellRights(t *testing.T) {
	server := redistest.StartRedisCell(t)
	do := func(command string) {
		t.Helper()
		if err := client(t, server).Do(t.Context(), words(command)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	do("ACL SETUSER least on >secret ~weir:* +eval +evalsha +get +mget +set +del +time +pttl")
	s := open(t, "redis://least:secret@"+server.Addr()+"/0", redisstore.Options{})
	failing(t, s, "may not run CL.THROTTLE", limiter.Hit{
		Key: "k", Policy: cell(t, 5, time.Second, 5), Route: byModule,
		N: 1,
	})
	do("ACL SETUSER least +cl.throttle")
	do("REPLICAOF 127.0.0.1 1")
	failing(t, s, "READONLY", limiter.Hit{Key: "k", Policy: cell(t, 5, time.Second, 5), Route: byModule, N: 1})
	do("REPLICAOF no one")
	p := cell(t, 5, time.Hour, 5)
	for _, n := range []int64{1, 0, -2, 5, 1} {
		take(t, s, "k", p, n, byModule)
		hits := []limiter.Hit{
			{Key: "k", Policy: p, Route: byModule, N: n, Peek: n == 0},
			{Key: "b", Policy: funnel(t, 0, time.Hour), N: 1},
		}
		if err := s.Take(t.Context(), hits, make([]limiter.Decision, 2)); err != nil {
			t.Error(err)
		}
	}
}

// TestRedisCellNonsenseStartsAgain writes states that the module cannot read, or cannot have written.
func TestRedisCellNonsenseStartsAgain(t *testing.T) {
	server := redistest.StartRedisCell(t)
	s, c := open(t, server.URL(), redisstore.Options{}), client(t, server)
	p := cell(t, 5, time.Hour, 5)
	in := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).UnixNano(), 10) }
	for _, state := range []string{
		"somebody's", "", "1e300", "inf", "nan", "99999999999999999999",
	} {
		for _, n := range []int64{1, 0, -1} {
			before := s.Stats().Restarted
			if err := c.Set(t.Context(), "weir:1:k", state, 0).Err(); err != nil {
				t.Fatal(err)
			}
			want := 5 - max(0, n)
			if d := take(t, s, "k", p, n, byModule); !d.Allowed || d.Remaining != want {
				t.Errorf("%q, cost %d: %+v, want %d left", state, n, d, want)
			}
			if ttl := c.PTTL(t.Context(), "weir:1:k").Val(); ttl == -1 || s.Stats().Restarted == before {
				t.Errorf("%q, cost %d: the key ends in %s, %d counters started again", state, n, ttl, s.Stats().Restarted-before)
			}
		}
	}
	for _, far := range []string{"9223372036854775807", in(2 * time.Hour), in(20 * 365 * day)} {
		if err := c.Set(t.Context(), "weir:1:k", far, 0).Err(); err != nil {
			t.Fatal(err)
		}
		before := s.Stats().Cut
		d := take(t, s, "k", p, 1, byModule)
		if d.Allowed || d.RetryAfter > 13*time.Minute || d.ResetAfter > 61*time.Minute || s.Stats().Cut == before {
			t.Errorf("%s, further ahead than 5 an hour can be: %+v, want it full", far, d)
		}
	}
	full := in(40 * time.Minute) // a rule of another rate may have left that
	if err := c.Set(t.Context(), "weir:1:k", full, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	before := s.Stats().Restarted
	if d := take(t, s, "k", p, 1, byModule); !d.Allowed || d.Remaining != 0 || s.Stats().Restarted != before {
		t.Errorf("a counter that is nearly full: %+v", d)
	}
}

// commandStats is the line of a command in INFO commandstats.
type commandStats struct {
	calls int
	usec  float64 // total
}

func stats(tb testing.TB, c *redis.Client, command string) (s commandStats) {
	tb.Helper()
	for line := range strings.SplitSeq(c.Info(tb.Context(), "commandstats").Val(), "\r\n") {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":"); ok {
			if _, err := fmt.Sscanf(rest, "calls=%d,usec=%f,", &s.calls, &s.usec); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return s
}

// TestRedisCellCountsWhatIsLeft has a rate for which the module, which divides whole microseconds, returns 2,000,001.
func TestRedisCellCountsWhatIsLeft(t *testing.T) {
	s := open(t, redistest.StartRedisCell(t).URL(), redisstore.Options{})
	p := cell(t, 3600, 3601*time.Second, 4_000_000)
	if left := take(t, s, "k", p, 2_000_000, byModule).Remaining; left != 2_000_000 {
		t.Errorf("%d left, want 2000000", left)
	}
	take(t, s, "nearly new", p, 3, byModule)
	if d := take(t, s, "nearly new", p, -1, byModule); d.Remaining != 3_999_998 || d.ResetAfter < time.Second {
		t.Errorf("two hits: %+v, want 3999998 left", d)
	}
}

// TestRedisCellInABatch lets requests share a call. A denial or an error of one request must not affect the others.
func TestRedisCellInABatch(t *testing.T) {
	batch := func(t *testing.T, server *redistest.Server, requests ...[]limiter.Hit) (answers []asked) {
		t.Helper()
		s := open(t, server.URL(), redisstore.Options{})
		resume := held(t, server, s)
		var pending []<-chan asked
		for i, hits := range requests {
			pending = append(pending, ask(t.Context(), s, hits...))
			waiting(t, s, i+1)
		}
		resume()
		for _, p := range pending {
			answers = append(answers, <-p)
		}
		return answers
	}
	p := cell(t, 10, time.Hour, 10)
	module := limiter.Hit{Key: "module", Policy: p, Route: byModule, N: 3}
	ours := limiter.Hit{Key: "ours", Policy: funnel(t, 10, time.Hour), N: 3}
	tooMuch := limiter.Hit{Key: "full", Policy: funnel(t, 1, time.Hour), N: 2}

	t.Run("denied", func(t *testing.T) {
		server := redistest.StartRedisCell(t)
		answers := batch(t, server, []limiter.Hit{ours, module}, []limiter.Hit{module, tooMuch}, []limiter.Hit{module})
		for i, want := range [][]int64{{7, 7}, {7, 1}, {4}} {
			if answers[i].err != nil {
				t.Fatal(answers[i].err)
			}
			for j, left := range want {
				if got := answers[i].out[j].Remaining; got != left {
					t.Errorf("request %d, hit %d: %d remaining, want %d", i, j, got, left)
				}
			}
		}
	})
	t.Run("no module", func(t *testing.T) {
		answers := batch(t, redistest.Start(t), []limiter.Hit{ours}, []limiter.Hit{ours, module}, []limiter.Hit{module},
			[]limiter.Hit{ours})
		for i, left := range []int64{7, -1, -1, 4} {
			switch a := answers[i]; {
			case left >= 0 && (a.err != nil || a.out[0].Remaining != left):
				t.Errorf("request %d without the module: %+v, want %d remaining", i, a, left)
			case left < 0 && !strings.Contains(fmt.Sprint(a.err), "this Redis has no redis-cell module"):
				t.Errorf("request %d: %v, want an error that names the module", i, a.err)
			}
		}
	})
}

// TestRedisCellNeverPromisesTooMuch checks that Remaining hits pass, even if a hit takes less than a millisecond, by
// which the module cannot divide.
func TestRedisCellNeverPromisesTooMuch(t *testing.T) {
	server := redistest.StartRedisCell(t)
	s, c := open(t, server.SocketURL(), redisstore.Options{}), client(t, server)
	for _, in := range []struct {
		limit, seconds, burst int64
	}{
		{1_001, 1, 900},
		{1_999, 1, 3_000},
		{3_000, 1, 30},
		{7_000, 1, 7_000},
		{30_011, 1, 5_000},
		{500_250, 1, 250_000},
		{666_667, 1, 100_000},
		{999_999, 1, 1_000},
		{1_500_000, 3, 40},
	} {
		p := cell(t, in.limit, time.Duration(in.seconds)*time.Second, in.burst)
		interval := in.seconds * 1e9 / in.limit
		if d := take(t, s, "fresh", p, 0, byModule); d.Remaining != in.burst || d.ResetAfter != 0 {
			t.Errorf("%v: a fresh counter: %+v", in, d)
		}
		for i := range int64(40) {
			// The module's state is a time in nanoseconds: with one that is planted, what is really left is known.
			key, used := fmt.Sprint(in, i), i*in.burst/40
			plant := time.Now().UnixNano() + used*interval
			if err := c.Set(t.Context(), "weir:1:"+key, plant, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
			d := take(t, s, key, p, 0, byModule)
			empty := time.Until(time.Unix(0, plant)) // later than it was decided: at least as much is left now
			if left := in.burst - (max(0, empty.Nanoseconds())+interval-1)/interval; d.Remaining > left {
				t.Errorf("%v, %d used: %d are told to be left, and less than %d are", in, used, d.Remaining, left+1)
			}
			if d.Remaining < in.burst-used-1 {
				t.Errorf("%v, %d used: %d are told to be left, at least %d were", in, used, d.Remaining, in.burst-used)
			}
		}
	}
}

// TestRoutesAreChecked checks that hits that a Route cannot decide are an error before any call.
func TestRoutesAreChecked(t *testing.T) {
	s := open(t, "redis://127.0.0.1:1/0", redisstore.Options{})
	g := redisstore.NewGroup(s, map[string]*redisstore.Store{"second": s})
	fits := cell(t, 5, time.Minute, 5)
	bucket := func(in limiter.Params) []limiter.Hit {
		in.Algorithm, in.Limit = limiter.TokenBucket, max(in.Limit, 1)
		in.Window = max(in.Window, time.Second)
		return []limiter.Hit{{Key: "k", Policy: policy(t, in), N: 1, Route: byModule}}
	}
	const decides = "hits[0]: the redis-cell module supports only funnels and token buckets of whole seconds, at most a hit a microsecond"
	for name, c := range map[string]struct {
		want string
		hits []limiter.Hit
	}{
		"half a second":   {decides, bucket(limiter.Params{Window: 1500 * time.Millisecond})},
		"too fast":        {decides, bucket(limiter.Params{Limit: 1_000_001})},
		"starts empty":    {decides, bucket(limiter.Params{StartsEmpty: true})},
		"intervals":       {decides, bucket(limiter.Params{RefillsAtOnce: true})},
		"charges denials": {decides, bucket(limiter.Params{ChargeDenied: limiter.ChargeFull})},
		"a log": {decides, []limiter.Hit{{
			Key: "k", N: 1, Route: byModule, Policy: policy(t, limiter.Params{
				Algorithm: limiter.SlidingLog, Limit: 1,
				Window: time.Second,
			}),
		}}},
		"a key that ends the server": {decides, []limiter.Hit{{Key: "\xff", Policy: fits, N: 1, Route: byModule}}},
	} {
		for _, store := range []limiter.Store{s, g} {
			err := store.Take(t.Context(), c.hits, make([]limiter.Decision, len(c.hits)))
			if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%s: %v, want an ErrInvalid that says %q", name, err, c.want)
			}
		}
	}
}
