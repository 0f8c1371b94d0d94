package statsd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/weir-ratelimit/weir/internal/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a packet may take to arrive.
const patience = 10 * time.Second

// receiver is a statsd server that keeps what it gets.
type receiver struct {
	t    *testing.T
	conn net.PacketConn
}

func listen(t *testing.T, network, addr string) *receiver {
	t.Helper()
	var config net.ListenConfig
	conn, err := config.ListenPacket(t.Context(), network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &receiver{t, conn}
}

func udp(t *testing.T) (*receiver, string) {
	t.Helper()
	r := listen(t, "udp", "127.0.0.1:0")
	return r, "udp://" + r.conn.LocalAddr().String()
}

// packets returns what has been sent, which ends with a line that begins with last.
func (r *receiver) packets(last string) (all []string) {
	r.t.Helper()
	if err := r.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		r.t.Fatal(err)
	}
	room := make([]byte, 1<<16)
	for {
		n, _, err := r.conn.ReadFrom(room)
		if err != nil {
			r.t.Fatalf("%v; so far %q", err, all)
		}
		all = append(all, string(room[:n]))
		if strings.Contains("\n"+all[len(all)-1], "\n"+last) {
			return all
		}
	}
}

func (r *receiver) lines(last string) []string {
	r.t.Helper()
	return strings.Split(strings.Join(r.packets(last), "\n"), "\n")
}

func newSender(t *testing.T, o Options) (*Sender, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	o.Interval, o.Prefix = time.Second, "weir."
	if o.Format == "" {
		o.Format = plain
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s, &log
}

// of are samples to send; the last one is a gauge by which its end is known.
func of(samples ...metrics.Sample) func() ([]metrics.Sample, error) {
	return func() ([]metrics.Sample, error) {
		return append(samples, metrics.Sample{Name: "weir_zero", Kind: metrics.Gauge}), nil
	}
}

const end = "weir.zero:"

func decisions(rule string, n float64) metrics.Sample {
	return metrics.Sample{Name: "weir_decisions_total", Value: n, Labels: []metrics.Label{
		{Name: "domain", Value: "shop"}, {Name: "limit", Value: ""}, {Name: "outcome", Value: "denied"}, {Name: "rule", Value: rule},
	}}
}

func send(t *testing.T, s *Sender, gather func() ([]metrics.Sample, error)) {
	t.Helper()
	s.send(t.Context(), gather, patience)
}

// Counters are sent as what they have grown by, and not at all if they have not.
func TestCounters(t *testing.T) {
	r, addr := udp(t)
	s, _ := newSender(t, Options{Addr: addr})
	for _, step := range []struct {
		value float64
		want  []string
	}{
		{3, []string{"weir.decisions.shop.api_key.-.denied:3|c", "weir.zero:0|g"}},
		{3, []string{"weir.zero:0|g"}},
		{10, []string{"weir.decisions.shop.api_key.-.denied:7|c", "weir.zero:0|g"}},
		{4, []string{"weir.decisions.shop.api_key.-.denied:4|c", "weir.zero:0|g"}}, // began anew
	} {
		send(t, s, of(decisions("api_key", step.value)))
		if diff := cmp.Diff(step.want, r.lines(end)); diff != "" {
			t.Errorf("the counter is %v (-want +got):\n%s", step.value, diff)
		}
	}
	if len(s.told) != 1 {
		t.Errorf("%d counters are remembered, want 1", len(s.told))
	}
	send(t, s, of())
	if len(s.told) != 0 {
		t.Errorf("a counter that is gone is remembered")
	}
}

// What a rule is called never breaks a line, and rules that look the same add up.
func TestNames(t *testing.T) {
	samples := []metrics.Sample{
		decisions("path=/a.b:c|d\n#é > x", 1), decisions("path=/a_b.c_d__é > x", 1), decisions(strings.Repeat("r", 1000), 1),
		{Name: "ratelimit_service_rate_limit_over_limit", Value: 2, Labels: []metrics.Label{
			{Name: "domain", Value: "a.b"}, {Name: "key1", Value: "k_v.w"}, {Name: "key2", Value: ""},
		}},
		{Name: "ratelimit_service_rate_limit_near_limit", Value: 2, Labels: []metrics.Label{
			{Name: "domain", Value: "a"}, {Name: "key1", Value: "k"}, {Name: "key2", Value: "l"},
		}},
		{Name: "ratelimit_service_config_load_success", Value: 1},
		{Name: "ratelimit_service_should_rate_limit_error", Value: 1, Labels: []metrics.Label{{Name: "err_type", Value: "redis_error"}}},
		{Name: "ratelimit_service_total_requests", Value: 1, Labels: []metrics.Label{{Name: "grpc_method", Value: "ShouldRateLimit"}}},
		{Name: "process_open_fds", Kind: metrics.Gauge, Value: 7},
	}
	cut := strings.Repeat("r", maxPart)
	for format, want := range map[string][]string{
		plain: {
			"weir.decisions.shop.path__a_b_c_d______x.-.denied:1|c",
			"weir.decisions.shop.path__a_b_c_d______x.-.denied:1|c",
			"weir.decisions.shop." + cut + ".-.denied:1|c",
			"ratelimit.service.rate_limit.a_b.k_v_w.over_limit:2|c",
			"ratelimit.service.rate_limit.a.k.l.near_limit:2|c",
			"ratelimit.service.config_load_success:1|c",
			"ratelimit.service.call.should_rate_limit.redis_error:1|c",
			"ratelimit_server.ShouldRateLimit.total_requests:1|c",
			"weir.process_open_fds:7|g",
			"weir.zero:0|g",
		},
		dogstatsd: {
			"weir.decisions:1|c|#domain:shop,outcome:denied,rule:path=/a.b:c_d__é > x,env:prod,team:a/b",
			"weir.decisions:1|c|#domain:shop,outcome:denied,rule:path=/a_b.c_d__é > x,env:prod,team:a/b",
			"weir.decisions:1|c|#domain:shop,outcome:denied,rule:" + cut + ",env:prod,team:a/b",
			"ratelimit.service.rate_limit.over_limit:2|c|#domain:a.b,key1:k_v.w,env:prod,team:a/b",
			"ratelimit.service.rate_limit.near_limit:2|c|#domain:a,key1:k,key2:l,env:prod,team:a/b",
			"ratelimit.service.config_load_success:1|c|#env:prod,team:a/b",
			"ratelimit.service.should_rate_limit_error:1|c|#err_type:redis_error,env:prod,team:a/b",
			"ratelimit.service.total_requests:1|c|#grpc_method:ShouldRateLimit,env:prod,team:a/b",
			"weir.process_open_fds:7|g|#env:prod,team:a/b",
			"weir.zero:0|g|#env:prod,team:a/b",
		},
	} {
		r, addr := udp(t)
		o := Options{Addr: addr, Format: format}
		if format == dogstatsd {
			o.Tags = []string{"env:prod", "team:a/b"}
		}
		s, _ := newSender(t, o)
		send(t, s, of(samples...))
		if diff := cmp.Diff(want, r.lines(end)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
	}
}

// A histogram is its count, sum, median and 99th percentile since the last time.
func TestHistogram(t *testing.T) {
	r, addr := udp(t)
	s, _ := newSender(t, Options{Addr: addr})
	histogram := func(count uint64, sum float64, upTo1, upTo2 uint64) metrics.Sample {
		return metrics.Sample{Name: "weir_request_seconds", Kind: metrics.Histogram, Count: count, Value: sum, Buckets: []metrics.Bucket{
			{UpTo: 1, Count: upTo1}, {UpTo: 2, Count: upTo2},
		}}
	}
	for _, step := range []struct {
		sample metrics.Sample
		want   []string
	}{
		{histogram(0, 0, 0, 0), []string{"weir.zero:0|g"}},
		{histogram(100, 75.5, 100, 100), []string{
			"weir.request_seconds.count:100|c", "weir.request_seconds.sum:75.5|c",
			"weir.request_seconds.p50:0.5|g", "weir.request_seconds.p99:0.99|g", "weir.zero:0|g",
		}},
		{histogram(104, 90, 100, 102), []string{ // two up to 2, and two beyond
			"weir.request_seconds.count:4|c", "weir.request_seconds.sum:14.5|c",
			"weir.request_seconds.p50:2|g", "weir.request_seconds.p99:2|g", "weir.zero:0|g",
		}},
	} {
		send(t, s, of(step.sample))
		if diff := cmp.Diff(step.want, r.lines(end)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", step.sample, diff)
		}
	}
}

// Packets are no larger than a frame carries, and all that is said of many rules arrives.
func TestPackets(t *testing.T) {
	r := listen(t, "unixgram", filepath.Join(t.TempDir(), "s")) // which loses nothing
	s, _ := newSender(t, Options{Addr: "unix://" + r.conn.LocalAddr().String(), Format: dogstatsd})
	var samples []metrics.Sample
	for i := range 2000 {
		samples = append(samples, decisions(fmt.Sprintf("rule%d-%s", i, strings.Repeat("x", i%300)), 1))
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		send(t, s, of(samples...))
	}()
	packets := r.packets(end)
	<-sent
	lines := 0
	for _, p := range packets {
		lines += strings.Count(p, "\n") + 1
		if len(p) > 1432 {
			t.Errorf("a packet of %d bytes", len(p))
		}
	}
	if lines != 2001 {
		t.Errorf("%d lines, want 2001", lines)
	}
	if full := (2000 * 250) / 1432; len(packets) > 2*full {
		t.Errorf("%d packets: they are not filled", len(packets))
	}
}

// While nobody listens, counts wait and the log has one line; then they are sent, and it has another.
func TestDeadReceiver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, log := newSender(t, Options{Addr: "unix://" + path})
	send(t, s, of(decisions("a", 3)))
	send(t, s, of(decisions("a", 5)))
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "metrics cannot be sent by statsd") {
		t.Errorf("%d lines, want one that says that nothing can be sent:\n%s", n, log)
	}
	r := listen(t, "unixgram", path)
	send(t, s, of(decisions("a", 6)))
	if diff := cmp.Diff([]string{"weir.decisions.shop.a.-.denied:6|c", "weir.zero:0|g"}, r.lines(end)); diff != "" {
		t.Errorf("after the receiver is there (-want +got):\n%s", diff)
	}
	if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "metrics are sent by statsd again") {
		t.Errorf("%d lines, want two:\n%s", n, log)
	}
}

// failing is a connection that breaks after some packets.
type failing struct {
	net.Conn
	left int
	got  []string
}

func (f *failing) Write(b []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errors.New("broken")
	}
	f.got = append(f.got, string(b))
	return len(b), nil
}

// What was not sent since the connection broke is sent the next time, and what was is not sent again.
func TestBrokenOnTheWay(t *testing.T) {
	s, _ := newSender(t, Options{Addr: "udp://127.0.0.1:1"})
	var samples []metrics.Sample
	for i := range 100 {
		samples = append(samples, decisions(fmt.Sprintf("rule%d", i), 1))
	}
	first, second := &failing{left: 1}, &failing{left: 100}
	if err := s.write(first, samples); err == nil {
		t.Fatal("the error of the connection is lost")
	}
	if err := s.write(second, samples); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.Join(append(first.got, second.got...), "\n"), "\n")
	slices.Sort(lines)
	if n := len(slices.Compact(slices.Clone(lines))); n != 100 || len(lines) != 100 {
		t.Errorf("%d lines, %d of them different, want each of 100 counters once", len(lines), n)
	}
}

// A socket that nobody reads from takes no more than its time.
func TestSlowReceiver(t *testing.T) {
	r := listen(t, "unixgram", filepath.Join(t.TempDir(), "s"))
	s, log := newSender(t, Options{Addr: "unix://" + r.conn.LocalAddr().String()})
	var samples []metrics.Sample
	for i := range 100_000 { // more than its buffer has
		samples = append(samples, decisions(fmt.Sprint("rule", i), 1))
	}
	s.send(t.Context(), of(samples...), 50*time.Millisecond)
	if !strings.Contains(log.String(), "timeout") {
		t.Errorf("the log does not tell of the timeout: %s", log)
	}
}

// The last counts are sent when the process ends.
func TestRunEndsWithTheLast(t *testing.T) {
	r, addr := udp(t)
	s, _ := newSender(t, Options{Addr: addr})
	s.o.Interval = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Run(ctx, of(decisions("a", 3)))
	if diff := cmp.Diff([]string{"weir.decisions.shop.a.-.denied:3|c", "weir.zero:0|g"}, r.lines(end)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOptions(t *testing.T) {
	good := Options{Addr: "udp://127.0.0.1:8125", Format: plain, Prefix: "weir."}
	for _, tt := range []struct {
		change func(*Options)
		want   string
	}{
		{func(*Options) {}, ""},
		{func(o *Options) { o.Addr = "unix:///run/dsd.socket" }, ""},
		{func(o *Options) { o.Format, o.Tags = dogstatsd, []string{"env:prod"} }, ""},
		{func(o *Options) { o.Addr = "127.0.0.1:8125" }, `addr: write udp://HOST:PORT or unix:///PATH, got "127.0.0.1:8125"`},
		{func(o *Options) { o.Addr = "unix://run/x" }, `addr: write udp://HOST:PORT or unix:///PATH, got "unix://run/x"`},
		{func(o *Options) { o.Addr = "udp://localhost" }, `addr: write udp://HOST:PORT, such as udp://127.0.0.1:8125, got "udp://localhost"`},
		{func(o *Options) { o.Format = "graphite" }, `format: must be statsd or dogstatsd, got "graphite"`},
		{func(o *Options) { o.Prefix = "a b" }, `prefix: must be up to 100 letters, digits, _, . and -, got "a b"`},
		{func(o *Options) { o.Tags = []string{"a:b"} }, `tag: statsd has no tags: use --statsd-format dogstatsd, or put it into --statsd-prefix`},
		{
			func(o *Options) { o.Format, o.Tags = dogstatsd, []string{"prod"} },
			`tag: write NAME:VALUE without spaces, commas, | and #, such as env:prod, got "prod"`,
		},
		{
			func(o *Options) { o.Format, o.Tags = dogstatsd, []string{"a:" + strings.Repeat("b", 400)} },
			`tag: all together may have 400 bytes, got 402`,
		},
	} {
		o := good
		tt.change(&o)
		_, err := New(o)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%+v: %q, want %q", o, got, tt.want)
		}
	}
}
