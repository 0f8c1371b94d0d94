package redisstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

const day = 24 * time.Hour

// calendar is a policy of the calendar of Berlin.
func calendar(t *testing.T, limit int64, window time.Duration) *limiter.Policy {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	return policy(t, limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: limit, Window: window, Align: limiter.AlignCalendar, TimeZone: berlin,
	})
}

// TestClocksApart: Redis's clock decides in which window of the calendar a request is, also when this process's is
// wrong by days. It costs one more call, once.
func TestClocksApart(t *testing.T) {
	server := redistest.Start(t)
	c := client(t, server)
	right := open(t, server.URL(), redisstore.Options{Timeout: 5 * time.Second})
	var out [3]limiter.Decision
	if err := right.Take(t.Context(), []limiter.Hit{ // loads the script
		{Key: "a", Policy: funnel(t, 10, day), Look: true}, {Key: "b", Policy: calendar(t, 10, day), Look: true},
	}, out[:]); err != nil {
		t.Fatal(err)
	}
	for _, off := range []time.Duration{
		0, 59 * time.Minute, -59 * time.Minute, 5 * time.Hour, -5 * time.Hour, 400 * day,
		-400 * day, -50 * 365 * day,
	} {
		t.Run(off.String(), func(t *testing.T) {
			wrong := open(t, server.URL(), redisstore.Options{Timeout: 5 * time.Second})
			wrong.SetWall(func() int64 { return time.Now().Add(off).UnixMicro() })
			hits := []limiter.Hit{
				{Key: off.String() + " funnel", Policy: funnel(t, 10, 365*day), N: 1},
				{Key: off.String() + " hour", Policy: calendar(t, 10, time.Hour), N: 1},
				{Key: off.String() + " month", Policy: calendar(t, 10, 30*day), N: 1},
			}
			var made []int
			for range 3 {
				before := calls(t, c)
				if err := wrong.Take(t.Context(), hits, out[:]); err != nil {
					t.Fatal(err)
				}
				made = append(made, calls(t, c)-before)
			}
			want := []int{1, 1, 1}
			if off.Abs() > 3*time.Hour {
				want[0] = 2
			}
			if diff := cmp.Diff(want, made); diff != "" {
				t.Errorf("script calls of three requests (-want +got)\n%s", diff)
			}
			for _, hit := range hits {
				want := take(t, right, hit.Key, hit.Policy, 0)
				if want.Remaining != 7 && hit.Policy.Window() != time.Hour { // an hour may have ended meanwhile
					t.Errorf("%s: %d remain of 10 after 3", hit.Key, want.Remaining)
				}
				got := take(t, wrong, hit.Key, hit.Policy, 0)
				if apart := want.ResetAfter - got.ResetAfter; got.Remaining != want.Remaining || apart < 0 || apart > time.Minute {
					t.Errorf("%s: %+v, with the right clock %+v", hit.Key, got, want)
				}
			}
		})
	}
}

// TestClocksApartOfADeniedRequest: a request of two stores that another limit denies is charged nothing, also where one
// of the stores had to be asked again because its clock is in another window of the calendar.
func TestClocksApartOfADeniedRequest(t *testing.T) {
	here, there := redistest.Start(t), redistest.Start(t)
	wrong, other := open(t, here.URL(), redisstore.Options{}), open(t, there.URL(), redisstore.Options{})
	wrong.SetWall(func() int64 { return time.Now().Add(-400 * day).UnixMicro() })
	g := redisstore.NewGroup(wrong, map[string]*redisstore.Store{"other": other})
	deniedAfterApart(t, g, "month", "ban", "other")
}

// clusterApart is that of two slots of a cluster.
func clusterApart(t *testing.T, c *redistest.Cluster) {
	s := open(t, c.URL(), redisstore.Options{})
	s.SetWall(func() int64 { return time.Now().Add(-400 * day).UnixMicro() })
	keys := apartKeys(t, c, s)
	deniedAfterApart(t, s, keys[0], keys[1], "")
}

// deniedAfterApart takes one hit of a month's ten together with one of a ban, which is in a store.
func deniedAfterApart(t *testing.T, s limiter.Store, month, ban, store string) {
	t.Helper()
	ten := calendar(t, 10, 30*day)
	hits := []limiter.Hit{{Key: month, Policy: ten, N: 1}, {Key: ban, Policy: funnel(t, 0, day), N: 1, Route: in(store)}}
	var out [2]limiter.Decision
	if err := s.Take(t.Context(), hits, out[:]); err != nil {
		t.Fatal(err)
	}
	if !out[0].Allowed || out[1].Allowed {
		t.Fatalf("%+v, want the month to fit and the ban to deny", out)
	}
	if left := take(t, s, month, ten, 0).Remaining; left != 10 {
		t.Errorf("%d remain of 10 after a request that was denied by another limit, want 10", left)
	}
}

// A clock that is put right is learnt as one that is wrong; one that never stands still is an error that says so,
// and nothing is charged.
func TestClocksMoveApart(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server.URL(), redisstore.Options{Timeout: 5 * time.Second})
	off, restless := 5*time.Hour, false
	s.SetWall(func() int64 {
		if restless {
			off += 5 * time.Hour
		}
		return time.Now().Add(off).UnixMicro()
	})
	p := calendar(t, 10, time.Hour)
	take(t, s, "k", p, 1)
	off = 0
	take(t, s, "k", p, 1)
	restless = true
	var out [1]limiter.Decision
	err := s.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: 1}}, out[:])
	const want = "us since 1970 by Redis's clock, more than a window away from the asker's"
	if !errors.Is(err, limiter.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("%v, want an ErrUnavailable that says %q", err, want)
	}
	restless = false
	if d := take(t, s, "k", p, 0); d.Remaining < 8 {
		t.Errorf("%d remain of 10 after two hits", d.Remaining)
	}
}

// TestCalendarAtAnyTime: Lua agrees with Go also where the clock is far from anything that happens.
func TestCalendarAtAnyTime(t *testing.T) {
	server := redistest.Start(t)
	clock := limitertest.NewClock()
	s := open(t, server.SocketURL(), redisstore.Options{Now: clock.Now, Timeout: 5 * time.Second})
	for _, name := range []string{"UTC", "Australia/Lord_Howe", "America/St_Johns", "Pacific/Apia", "Asia/Beirut"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, window := range []time.Duration{time.Hour, day, 7 * day, 30 * day, 180 * day, 365 * day} {
			p := policy(t, limiter.Params{
				Algorithm: limiter.FixedWindow, Limit: 2, Window: window, Align: limiter.AlignCalendar, TimeZone: zone,
			})
			var state storekit.State
			key := name + window.String()
			for _, now := range []int64{
				0, 1, 3_599_999_999, 1 << 40, 0, 1_325_239_199_999_999, 1_325_239_200_000_000, 1 << 51,
				1 << 52, 8_900_000_000_000_000, 1 << 52, 0,
			} {
				for _, at := range []int64{now, limit.Edges(p, now)[2] - 1, limit.Edges(p, now)[2]} {
					clock.Set(at)
					next, want := storekit.Step(p, state, at, 1)
					if got := take(t, s, key, p, 1); got != want {
						t.Fatalf("%s of %s at %d after %v: %+v, want %+v", window, name, at, state, got, want)
					}
					state = next
				}
			}
		}
	}
}

// TestCalendarExpires: a counter is kept until its window ends by the calendar.
func TestCalendarExpires(t *testing.T) {
	server := redistest.Start(t)
	s, c := open(t, server.URL(), redisstore.Options{}), client(t, server)
	p := calendar(t, 10, 365*day)
	d := take(t, s, "k", p, 1)
	ttl := c.PTTL(t.Context(), "weir:1:k").Val()
	if end := time.UnixMicro(limit.Edges(p, time.Now().UnixMicro())[2]); ttl < d.ResetAfter-time.Minute ||
		ttl > d.ResetAfter+time.Millisecond ||
		time.Until(end)-ttl > time.Minute {
		t.Errorf("expires in %s, reset in %s, the year ends in %s", ttl, d.ResetAfter, time.Until(end))
	}
}
