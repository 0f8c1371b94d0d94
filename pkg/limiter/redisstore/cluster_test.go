package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// TestCluster runs all of its parts on one cluster. The first parts do not change the cluster, the last kills a master.
func TestCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, strings.Fields("--user weir on >s3cret "+rights+" +cluster|slots +asking")...)
	var stores atomic.Int64
	fresh := func(t *testing.T, clock *limitertest.Clock) limiter.Store {
		t.Helper()
		return open(t, c.URL(), redisstore.Options{KeyPrefix: fmt.Sprintf("t%d:", stores.Add(1)), Now: clock.Now})
	}
	t.Run("contract", func(t *testing.T) { limitertest.Run(t, fresh) })
	t.Run("scripts agree with Go", func(t *testing.T) {
		limitertest.HistoriesInTwoSteps(t, fresh,
			casetest.Pick(30, 600))
	})
	for _, part := range []struct {
		name  string
		check func(t *testing.T, c *redistest.Cluster)
	}{
		{"slots", clusterSlots},
		{"ping asks each master", clusterPing},
		{"limits of a descriptor share a slot", clusterTags},
		{"calls are counted", clusterStats},
		{"a denial is undone later", clusterUndoLater},
		{"what one place charged is refunded when another fails", clusterRefund},
		{"refunds are heard", clusterRefunds},
		{"a user with few rights", clusterUser},
		{"a slot moves", clusterSlotMoves},
		{"a master fails", clusterMasterFails},
	} {
		t.Run(part.name, func(t *testing.T) { part.check(t, c) })
	}
}

// clusterSlots compares slots with CLUSTER KEYSLOT.
func clusterSlots(t *testing.T, c *redistest.Cluster) {
	for _, key := range []string{
		"", "a", "foo{bar}baz", "{}x", "a{}{b}", "{a", "}{a}", "123456789",
		"weir:1:funnel|{shop|k=v}", "ключ{ю}",
	} {
		want := redistest.Do(t, c.Masters[0], "cluster", "keyslot", key)
		if got := int64(redisstore.SlotOf(key)); got != want {
			t.Errorf("%q is in slot %d, want %d", key, got, want)
		}
	}
}

// clusterTags checks that a request with several limits of one descriptor is one call.
func clusterTags(t *testing.T, c *redistest.Cluster) {
	s := open(t, c.URL(), redisstore.Options{})
	same := []string{"funnel|shop|api_key=a", "fixed_window:day|shop|api_key=a", "token_bucket#2|shop|api_key=a"}
	for _, key := range same {
		if got, want := redisstore.SlotOf(s.Key(key)), redisstore.SlotOf("shop|api_key=a"); got != want {
			t.Errorf("%s is in slot %d, want %d", s.Key(key), got, want)
		}
	}
	if a, b := redisstore.SlotOf(s.Key(same[0])), redisstore.SlotOf(s.Key("funnel|shop|api_key=b")); a == b {
		t.Errorf("two values share slot %d", a)
	}
}

// apartKeys returns keys of counters, one on each master.
func apartKeys(t *testing.T, c *redistest.Cluster, s *redisstore.Store) (keys []string) {
	t.Helper()
	per := 16384 / len(c.Masters)
	for i := range c.Masters {
		for n := 0; ; n++ {
			key := fmt.Sprintf("%s|%d", t.Name(), n)
			if slot := int(redisstore.SlotOf(s.Key(key))); slot >= i*per+10 && slot < (i+1)*per-10 {
				keys = append(keys, key)
				break
			}
		}
	}
	return keys
}

// clusterUndoLater lets time pass, and another request charge the limit, before a charge is taken back. A charge that
// has expired is not refunded.
func clusterUndoLater(t *testing.T, c *redistest.Cluster) {
	for _, a := range []limiter.Algorithm{
		limiter.FixedWindow, limiter.Funnel, limiter.TokenBucket, limiter.SlidingWindow, limiter.SlidingLog,
		limiter.Concurrency,
	} {
		t.Run(a.String(), func(t *testing.T) {
			clock := limitertest.NewClock()
			one := open(t, c.URL(), redisstore.Options{Now: clock.Now})
			other := open(t, c.URL(), redisstore.Options{Now: clock.Now})
			keys, p, ban := apartKeys(t, c, one), policy(t, limiter.Params{
				Algorithm: a, Limit: 10,
				Window: time.Hour,
			}), funnel(t, 0, time.Hour)
			for _, key := range keys { // connects
				take(t, one, key, p, 0)
				take(t, other, key, p, 0)
			}
			c.Masters[1].Pause()
			defer c.Masters[1].Resume()
			answer := ask(t.Context(), one, limiter.Hit{Key: keys[0], Policy: p, N: 5},
				limiter.Hit{Key: keys[1], Policy: ban, N: 1})
			redistest.Await(t, func() error {
				if now := take(t, other, keys[0], p, 0).Remaining; now != 5 {
					return fmt.Errorf("%d remain of 10, want 5", now)
				}
				return nil
			})
			clock.Advance(3 * time.Hour)
			take(t, other, keys[0], p, 7)
			c.Masters[1].Resume()
			if got := <-answer; got.err != nil || got.out[0].Remaining != 3 {
				t.Errorf("%+v: want 3 remaining of 10, 7 being another's", got)
			}
			if now := take(t, other, keys[0], p, 0).Remaining; now != 3 {
				t.Errorf("%d remain of 10, want 3", now)
			}
		})
	}
}

func clusterRefund(t *testing.T, c *redistest.Cluster) {
	s := open(t, c.URL(), redisstore.Options{Timeout: 500 * time.Millisecond})
	keys, p := apartKeys(t, c, s), funnel(t, 10, time.Hour)
	hits := []limiter.Hit{
		{Key: keys[0], Policy: p, N: 3},
		{Key: keys[1], Policy: p, N: 3},
		{Key: keys[2], Policy: p, N: 3, Mode: limiter.Shadow},
	}
	out := make([]limiter.Decision, 3)
	redistest.Await(t, func() error { return s.Take(t.Context(), hits, out) })
	before := take(t, s, keys[0], p, 0).Remaining
	shadow := take(t, s, keys[2], p, 0).Remaining
	patient := open(t, c.URL(), redisstore.Options{})
	take(t, patient, keys[0], p, 0) // connects
	c.Masters[1].Pause()
	start := time.Now()
	err := s.Take(t.Context(), hits, out)
	took := time.Since(start)
	c.Masters[1].Resume()
	if !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("beside a node that hangs: %v, want ErrUnavailable", err)
	}
	if took > 40*time.Second { // it would take a minute if it waited for the node that hangs
		t.Errorf("Take came back after %s, its timeout is 500ms", took)
	}
	redistest.Await(t, func() error {
		if now := take(t, patient, keys[0], p, 0).Remaining; now != before {
			return fmt.Errorf("%d remain where %d did before a request that failed", now, before)
		}
		return nil
	})
	if now := take(t, patient, keys[2], p, 0).Remaining; now != shadow-3 {
		t.Errorf("%d remain of a shadow limit, want %d: it is charged by itself", now, shadow-3)
	}
}

// clusterRefunds checks that Refunds receives the refunds on every node.
func clusterRefunds(t *testing.T, c *redistest.Cluster) {
	s := open(t, c.URL(), redisstore.Options{})
	keys, p := apartKeys(t, c, s), funnel(t, 10, time.Hour)
	hearRefunds(t, s, keys, limiter.Hit{Key: keys[0], Policy: p, N: -1}, limiter.Hit{Key: keys[1], Policy: p, N: -1},
		limiter.Hit{Key: keys[2], Policy: p, N: -1})
	resets(t, s, "funnel|shop|a=b", p)
	// What a denied request was charged for a moment is refunded, too.
	hearRefunds(t, s, keys[:1], limiter.Hit{Key: keys[0], Policy: p, N: 1},
		limiter.Hit{Key: keys[1], Policy: funnel(t, 0, time.Hour), N: 1})
}

// hearRefunds takes the hits, and checks that Refunds receives a refund of each of the counters.
func hearRefunds(t *testing.T, s *redisstore.Store, counters []string, hits ...limiter.Hit) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	heard, begun, ended := make(chan string, 100), make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		s.Refunds(ctx, func(key string, _ bool) { heard <- key }, func(yes bool, _ error) {
			if yes {
				begun <- struct{}{}
			}
		})
	}()
	defer func() { cancel(); <-ended }()
	<-begun
	redistest.Await(t, func() error { return s.Take(t.Context(), hits, make([]limiter.Decision, len(hits))) })
	missing := slices.Clone(counters)
	for len(missing) > 0 {
		select {
		case got := <-heard:
			missing = slices.DeleteFunc(missing, func(key string) bool { return key == got })
		case <-time.After(patient):
			t.Fatalf("nothing was heard of %q", missing)
		}
	}
}

// clusterUser counts and receives refunds as a Redis user with only the rights of docs/operate/redis.md.
func clusterUser(t *testing.T, c *redistest.Cluster) {
	s := open(t, strings.Replace(c.URL(), "://", "://weir:s3cret@", 1), redisstore.Options{})
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	keys, p := apartKeys(t, c, s), funnel(t, 10, time.Hour)
	hearRefunds(t, s, keys[:1], limiter.Hit{Key: keys[0], Policy: p, N: 1},
		limiter.Hit{Key: keys[1], Policy: funnel(t, 0, time.Hour), N: 1})
}

// traffic takes hits of all keys, together and one by one, from several goroutines until it is ended. It counts the
// admitted hits of each key, and the requests that failed.
type traffic struct {
	store    *redisstore.Store
	policy   *limiter.Policy
	keys     []string
	admitted []atomic.Int64
	unknown  atomic.Int64
	answered atomic.Int64
	stop     chan struct{}
	wait     sync.WaitGroup
}

func startTraffic(t *testing.T, s *redisstore.Store, keys []string, p *limiter.Policy) *traffic {
	t.Helper()
	f := &traffic{store: s, policy: p, keys: keys, admitted: make([]atomic.Int64, len(keys)), stop: make(chan struct{})}
	for g := range 4 {
		f.wait.Go(func() {
			for i := g; ; i++ {
				select {
				case <-f.stop:
					return
				case <-time.After(time.Millisecond): // some thousand requests a second would be the test of something else
				}
				f.ask(t.Context(), i)
			}
		})
	}
	return f
}

func (f *traffic) ask(ctx context.Context, i int) {
	ks := []int{i % len(f.keys)}
	if i%3 == 0 {
		ks = append(ks, (i+1)%len(f.keys))
	}
	hits, out := make([]limiter.Hit, len(ks)), make([]limiter.Decision, len(ks))
	for j, k := range ks {
		hits[j] = limiter.Hit{Key: f.keys[k], Policy: f.policy, N: 1}
	}
	if err := f.store.Take(ctx, hits, out); err != nil {
		f.unknown.Add(int64(len(ks)))
		return
	}
	f.answered.Add(1)
	if limiter.Admitted(hits, out) {
		for _, k := range ks {
			f.admitted[k].Add(1)
		}
	}
}

// more waits for n more decisions.
func (f *traffic) more(t *testing.T, n int64) {
	t.Helper()
	until := f.answered.Load() + n
	redistest.Await(t, func() error {
		if now := f.answered.Load(); now < until {
			return fmt.Errorf("%d answers more, want %d; %d requests without an answer", n-(until-now), n, f.unknown.Load())
		}
		return nil
	})
}

func (f *traffic) end() {
	close(f.stop)
	f.wait.Wait()
}

// counts returns the number of admitted hits of each key.
func (f *traffic) counts() (all []int64) {
	for i := range f.admitted {
		all = append(all, f.admitted[i].Load())
	}
	return all
}

// check compares each counter with the admitted hits. lost is the number of hits that each counter may lack, because a
// replica that becomes a master may not have received them.
func (f *traffic) check(t *testing.T, lost []int64) {
	t.Helper()
	unknown := f.unknown.Load()
	t.Logf("%d requests answered, %d hits without an answer", f.answered.Load(), unknown)
	for i, key := range f.keys {
		charged, admitted := f.policy.Limit()-take(t, f.store, key, f.policy, 0).Remaining, f.admitted[i].Load()
		if charged < admitted-lost[i] || charged > admitted+unknown {
			t.Errorf("%s: %d hits charged, %d admitted and %d without an answer", key, charged, admitted, unknown)
		}
	}
}

// clusterSlotMoves migrates a slot with counters, some of which begin meanwhile. Every request must be decided, and
// every hit must count once.
func clusterSlotMoves(t *testing.T, c *redistest.Cluster) {
	s := open(t, strings.Replace(c.URL(), "://", "://weir:s3cret@", 1), redisstore.Options{KeyPrefix: "weir:moves:"})
	p := funnel(t, 100_000, step.MaxWindow)
	var keys []string // in one slot, but for the last one, by a tag that is not ours
	for i := range 6 {
		keys = append(keys, fmt.Sprintf("{moves}%d", i))
	}
	keys = append(keys, "elsewhere")
	f := startTraffic(t, s, keys[:3], p)
	f.more(t, 100)
	all := startTraffic(t, s, keys, p) // its other counters begin while the slot moves
	slot := int(redisstore.SlotOf("{moves}"))
	per := 16384 / 3
	from := c.Masters[min(slot/per, 2)]
	to := c.Masters[(min(slot/per, 2)+1)%3]
	c.Move(slot, from, to, func() { f.more(t, 300); all.more(t, 300) })
	f.more(t, 100)
	all.more(t, 100)
	f.end()
	all.end()
	if u := f.unknown.Load() + all.unknown.Load(); u > 0 {
		t.Errorf("%d hits had no answer", u)
	}
	for i, key := range keys {
		want := p.Limit() - all.admitted[i].Load()
		if i < 3 {
			want -= f.admitted[i].Load()
		}
		if got := take(t, s, key, p, 0).Remaining; got != want {
			t.Errorf("%s: %d remain, want %d", key, got, want)
		}
	}
	n := 0
	there, _ := redistest.Do(t, to, "cluster", "getkeysinslot", slot, 100).([]any)
	for _, key := range there { // those of other tests may be there, too
		if key, _ := key.(string); strings.HasPrefix(key, "weir:moves:") {
			n++
		}
	}
	if n != 6 {
		t.Errorf("%d counters are where the slot went, want 6: %v", n, there)
	}
}

// clusterMasterFails kills a master under traffic. The replica takes over, and the same store continues. Only hits that
// the replica had not received may be lost.
func clusterMasterFails(t *testing.T, c *redistest.Cluster) {
	s := open(t, c.URL(), redisstore.Options{Timeout: 200 * time.Millisecond})
	keys, p := apartKeys(t, c, s), funnel(t, 100_000, step.MaxWindow) // in an hour less than two hits leak
	f := startTraffic(t, s, keys, p)
	f.more(t, 200)
	c.Fail(2)
	redistest.Await(t, func() error {
		return s.Take(t.Context(), []limiter.Hit{{Key: keys[2], Policy: p, Peek: true}}, make([]limiter.Decision, 1))
	})
	before := f.counts()
	before[0], before[1] = 0, 0 // nothing of theirs may be lost
	f.more(t, 200)
	f.end()
	f.check(t, before)
	c.AwaitOK()
	hearRefunds(t, s, keys[2:], limiter.Hit{Key: keys[2], Policy: p, N: -1})
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
