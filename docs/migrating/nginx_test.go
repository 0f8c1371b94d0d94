package migrating

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// nginx has the settings of limit_req_zone and limit_req, and its arithmetic, in thousandths of a request.
type nginx struct {
	rate, per int64 // requests per so many seconds: 1 or 60
	burst     int64
	nodelay   bool
	delay     int64 // of delay=; 0: not given

	known        bool
	excess, last int64 // thousandths; milliseconds
}

// rule returns the rule that nginx.md gives for the settings.
func (x *nginx) rule() limiter.Params {
	in := limiter.Params{Algorithm: limiter.Funnel, Limit: x.rate, Window: time.Duration(x.per) * time.Second}
	switch each := in.Window / time.Duration(x.rate); {
	case x.nodelay || x.delay >= x.burst:
		in.Burst = x.burst + 1
	case x.delay > 0:
		in.Algorithm = limiter.SmoothBursty
		in.BurstFor, in.MaxWait = each*time.Duration(x.delay), each*time.Duration(x.burst-x.delay)
	default:
		in.Algorithm, in.Burst = limiter.LeakyQueue, x.burst
	}
	return in
}

// after returns the excess that a request at that time would leave. The old excess drains at the rate. The rate and the
// drained amount are cut to thousandths of a request. The first request of a key leaves no excess.
func (x *nginx) after(now int64) int64 {
	if !x.known {
		return 0
	}
	return max(0, x.excess-x.rate*1000/x.per*(now-x.last)/1000+1000)
}

func (x *nginx) admits(now int64) bool { return x.after(now) <= 1000*x.burst }

// take admits a request, and returns for how many milliseconds it waits.
func (x *nginx) take(now int64) int64 {
	x.excess, x.last, x.known = x.after(now), now, true
	if x.nodelay {
		return 0
	}
	return max(0, x.excess-1000*x.delay) * 1000 / (x.rate * 1000 / x.per)
}

func drawNginx(t *rapid.T, per int64) *nginx {
	return &nginx{
		rate: rapid.Int64Range(1, 200).Draw(t, "rate"), per: per, burst: rapid.Int64Range(0, 30).Draw(t, "burst"),
		nodelay: rapid.Bool().Draw(t, "nodelay"),
	}
}

// TestNginx: with a rate in r/s both admit the same requests, and Weir's wait is less than a millisecond longer, which
// nginx cuts off.
func TestNginx(t *testing.T) {
	onPage(t, "nginx.md", "per-address", (&nginx{rate: 10, per: 1, burst: 20, nodelay: true}).rule())
	onPage(t, "nginx.md", "search", (&nginx{rate: 2, per: 1, burst: 5}).rule())
	onPage(t, "nginx.md", "downloads", (&nginx{rate: 5, per: 1, burst: 12, delay: 8}).rule())
	rapid.Check(t, func(t *rapid.T) {
		x := drawNginx(t, 1)
		if rapid.Bool().Draw(t, "delays") { // rules have whole milliseconds
			x.rate = rapid.SampledFrom([]int64{1, 2, 4, 5, 8, 10, 20, 50, 100, 125, 200}).Draw(t, "rate")
			x.delay = rapid.Int64Range(1, 30).Draw(t, "delay")
		}
		h := newHistory(t, x.rule(), time.Millisecond)
		for range h.requests() {
			h.move(time.Duration(x.burst+2) * time.Second / time.Duration(x.rate))
			now := h.since(time.Millisecond)
			d := h.ask(1)
			if d.Allowed != x.admits(now) {
				t.Fatalf("%+v at %d: Weir says %+v", x, now, d)
			}
			if d.Allowed {
				wait := time.Duration(x.take(now)) * time.Millisecond
				between(t, "the wait", d.Wait-wait, 0, time.Millisecond-time.Microsecond)
			}
		}
	})
}

// TestNginxPerMinute: with a rate in r/m nginx admits nothing that Weir denies, and denies at most what its cut rate
// lacks: a thousandth of a request for each second and each request.
func TestNginxPerMinute(t *testing.T) {
	onPage(t, "nginx.md", "login", (&nginx{rate: 10, per: 60, burst: 4, nodelay: true}).rule())
	rapid.Check(t, func(t *rapid.T) {
		x := drawNginx(t, 60)
		h := newHistory(t, x.rule(), time.Millisecond)
		begin := h.since(time.Second)
		for i := range h.requests() {
			h.move(time.Duration(x.burst+2) * time.Minute / time.Duration(x.rate))
			now := h.since(time.Millisecond)
			lacks := int64(i) + h.since(time.Second) - begin + 1
			switch d := h.ask(1); {
			case !d.Allowed && x.admits(now):
				t.Fatalf("%+v at %d: nginx admits what Weir denies", x, now)
			case d.Allowed:
				between(t, "the excess", x.after(now), 0, 1000*x.burst+lacks)
				x.take(now)
			}
		}
	})
}
