package redisstore_test

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

const day = 24 * time.Hour

// calendar returns a policy with calendar windows in Kolkata, which has no summer time.
func calendar(t *testing.T, limit int64, window time.Duration) *limiter.Policy {
	t.Helper()
	zone, err := time.LoadLocation("Asia/Kolkata")
	if err != nil {
		t.Fatal(err)
	}
	return policy(t, limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: limit, Window: window, Align: limiter.AlignCalendar, TimeZone: zone,
	})
}

// TestClocksApart checks that the clock of Redis selects the calendar window of a request, even if this process's clock
// is wrong by days. With months, which differ in length, the request fails instead.
func TestClocksApart(t *testing.T) {
	server := redistest.Start(t)
	c := client(t, server)
	right := open(t, server.URL(), redisstore.Options{Timeout: patient})
	take(t, right, "loads the script", calendar(t, 10, day), 0)
	for _, off := range []time.Duration{
		0, 59 * time.Minute, -59 * time.Minute, 5 * time.Hour, -5 * time.Hour, 400 * day, -50 * 365 * day,
	} {
		wrong := open(t, server.URL(), redisstore.Options{Timeout: patient})
		wrong.SetWall(func() int64 { return time.Now().Add(off).UnixMicro() })
		for _, window := range []time.Duration{time.Hour, day, 7 * day} {
			key, p, before := off.String()+window.String(), calendar(t, 10, window), calls(t, c)
			take(t, wrong, key, p, 3)
			if n := calls(t, c) - before; n != 1 {
				t.Errorf("%s apart: a request made %d calls", off, n)
			}
			want, got := take(t, right, key, p, 0), take(t, wrong, key, p, 0)
			if apart := want.ResetAfter - got.ResetAfter; got.Remaining != want.Remaining || apart < 0 || apart > time.Minute {
				t.Errorf("%s apart, per %s: %+v, with the right clock %+v", off, window, got, want)
			}
		}
	}
	wrong := open(t, server.URL(), redisstore.Options{Timeout: patient})
	wrong.SetWall(func() int64 { return time.Now().Add(-400 * day).UnixMicro() })
	failing(t, wrong, "more than a window of the limit apart", limiter.Hit{Key: "k", Policy: calendar(t, 10, 30*day), N: 1})
}

// TestCalendarAtAnyTime checks that Lua agrees with Go even at times in the far past and future.
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

// TestCalendarExpires checks that a counter's key lives until the end of its calendar window.
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
