package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a packet may take to arrive.
const patience = time.Minute

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

func newSender(t *testing.T, o StatsdOptions) (*Statsd, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	o.Interval, o.Prefix = time.Second, "weir."
	if o.Format == "" {
		o.Format = statsdFormat
	}
	s, err := NewStatsd(o)
	if err != nil {
		t.Fatal(err)
	}
	return s, &log
}

// of are series to send; the last one is a gauge by which the end is recognized.
func of(series ...*dto.MetricFamily) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		return append(series, gaugeOf("weir_zero", 0)), nil
	})
}

const last = "weir.zero:"

// counterOf is a counter with these names and values of labels.
func counterOf(name string, value float64, labels ...string) *dto.MetricFamily {
	m := &dto.Metric{Counter: &dto.Counter{Value: &value}}
	for i := 0; i < len(labels); i += 2 {
		m.Label = append(m.Label, &dto.LabelPair{Name: &labels[i], Value: &labels[i+1]})
	}
	return &dto.MetricFamily{Name: &name, Metric: []*dto.Metric{m}}
}

func gaugeOf(name string, value float64) *dto.MetricFamily {
	return &dto.MetricFamily{Name: &name, Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &value}}}}
}

// histogramOf has buckets up to 1 and up to 2.
func histogramOf(count uint64, sum float64, upTo1, upTo2 uint64) *dto.MetricFamily {
	name, one, two := "weir_request_seconds", 1., 2.
	return &dto.MetricFamily{Name: &name, Metric: []*dto.Metric{{Histogram: &dto.Histogram{
		SampleCount: &count, SampleSum: &sum,
		Bucket: []*dto.Bucket{{UpperBound: &one, CumulativeCount: &upTo1}, {UpperBound: &two, CumulativeCount: &upTo2}},
	}}}}
}

func decisionsOf(rule string, n float64) *dto.MetricFamily {
	return counterOf("weir_decisions_total", n, "domain", "shop", "limit", "", "outcome", "denied", "rule", rule)
}

func send(t *testing.T, s *Statsd, from prometheus.Gatherer) {
	t.Helper()
	s.send(t.Context(), from, patience)
}

// Counters are sent as what they have grown by, and not at all if they have not.
func TestStatsdCounters(t *testing.T) {
	r, addr := udp(t)
	s, _ := newSender(t, StatsdOptions{Addr: addr})
	for _, step := range []struct {
		value float64
		want  []string
	}{
		{3, []string{"weir.decisions.shop.api_key.-.denied:3|c", "weir.zero:0|g"}},
		{3, []string{"weir.zero:0|g"}},
		{10, []string{"weir.decisions.shop.api_key.-.denied:7|c", "weir.zero:0|g"}},
		{4, []string{"weir.decisions.shop.api_key.-.denied:4|c", "weir.zero:0|g"}}, // began again
	} {
		send(t, s, of(decisionsOf("api_key", step.value)))
		if diff := cmp.Diff(step.want, r.lines(last)); diff != "" {
			t.Errorf("the counter is %v (-want +got):\n%s", step.value, diff)
		}
	}
	if len(s.sent) != 1 {
		t.Errorf("%d counters are remembered, want 1", len(s.sent))
	}
	send(t, s, of())
	if len(s.sent) != 0 {
		t.Errorf("a counter that is gone is remembered")
	}
}

// What a rule is called never breaks a line, and rules that look the same add up.
func TestStatsdNames(t *testing.T) {
	series := []*dto.MetricFamily{
		decisionsOf("path=/a.b:c|d\n#é > x", 1), decisionsOf("path=/a_b.c_d__é > x", 1),
		decisionsOf(strings.Repeat("r", 1000), 1),
		counterOf("ratelimit_service_rate_limit_over_limit", 2, "domain", "a.b", "key1", "k_v.w", "key2", ""),
		counterOf("ratelimit_service_rate_limit_near_limit", 2, "domain", "a", "key1", "k", "key2", "l"),
		counterOf("ratelimit_service_config_load_success", 1),
		counterOf("ratelimit_service_should_rate_limit_error", 1, "err_type", "redis_error"),
		counterOf("ratelimit_service_total_requests", 1, "grpc_method", "ShouldRateLimit"),
		gaugeOf("go_goroutines", 5), // never sent
		gaugeOf("process_open_fds", 7),
	}
	cut := strings.Repeat("r", maxPart)
	for format, want := range map[string][]string{
		statsdFormat: {
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
		dogstatsdFormat: {
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
		o := StatsdOptions{Addr: addr, Format: format}
		if format == dogstatsdFormat {
			o.Tags = []string{"env:prod", "team:a/b"}
		}
		s, _ := newSender(t, o)
		send(t, s, of(series...))
		if diff := cmp.Diff(want, r.lines(last)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
	}
}

// A histogram is its count, sum, median and 99th percentile since the last time.
func TestStatsdHistogram(t *testing.T) {
	r, addr := udp(t)
	s, _ := newSender(t, StatsdOptions{Addr: addr})
	for _, step := range []struct {
		series *dto.MetricFamily
		want   []string
	}{
		{histogramOf(0, 0, 0, 0), []string{"weir.zero:0|g"}},
		{histogramOf(100, 75.5, 100, 100), []string{
			"weir.request_seconds.count:100|c", "weir.request_seconds.sum:75.5|c",
			"weir.request_seconds.p50:0.5|g", "weir.request_seconds.p99:0.99|g", "weir.zero:0|g",
		}},
		{histogramOf(104, 90, 100, 102), []string{ // two up to 2, and two beyond
			"weir.request_seconds.count:4|c", "weir.request_seconds.sum:14.5|c",
			"weir.request_seconds.p50:2|g", "weir.request_seconds.p99:2|g", "weir.zero:0|g",
		}},
	} {
		send(t, s, of(step.series))
		if diff := cmp.Diff(step.want, r.lines(last)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", step.series, diff)
		}
	}
}

// Packets are no larger than a frame carries, and all that is said of many rules arrives.
func TestStatsdPackets(t *testing.T) {
	r := listen(t, "unixgram", filepath.Join(t.TempDir(), "s")) // which loses nothing
	s, _ := newSender(t, StatsdOptions{Addr: "unix://" + r.conn.LocalAddr().String(), Format: dogstatsdFormat})
	var series []*dto.MetricFamily
	for i := range 2000 {
		series = append(series, decisionsOf(fmt.Sprintf("rule%d-%s", i, strings.Repeat("x", i%300)), 1))
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		send(t, s, of(series...))
	}()
	packets := r.packets(last)
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
func TestStatsdDeadReceiver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, log := newSender(t, StatsdOptions{Addr: "unix://" + path})
	send(t, s, of(decisionsOf("a", 3)))
	send(t, s, of(decisionsOf("a", 5)))
	n := strings.Count(log.String(), "\n")
	if n != 1 || !strings.Contains(log.String(), "metrics cannot be sent by statsd") {
		t.Errorf("%d lines, want one that says that nothing can be sent:\n%s", n, log)
	}
	r := listen(t, "unixgram", path)
	send(t, s, of(decisionsOf("a", 6)))
	if diff := cmp.Diff([]string{"weir.decisions.shop.a.-.denied:6|c", "weir.zero:0|g"}, r.lines(last)); diff != "" {
		t.Errorf("after the receiver is there (-want +got):\n%s", diff)
	}
	n = strings.Count(log.String(), "\n")
	if n != 2 || !strings.Contains(log.String(), "metrics are sent by statsd again") {
		t.Errorf("%d lines, want two:\n%s", n, log)
	}
}

// Also one packet of UDP that nobody receives is noticed, so that the log does not say each time that it works again.
func TestStatsdDeadReceiverOfUDP(t *testing.T) {
	r, addr := udp(t)
	if err := r.conn.Close(); err != nil {
		t.Fatal(err)
	}
	s, log := newSender(t, StatsdOptions{Addr: addr})
	for i := range 3 {
		send(t, s, of(decisionsOf("a", float64(i))))
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "connection refused") {
		t.Errorf("%d lines, want one that says that nobody listens:\n%s", n, log)
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
func TestStatsdBrokenConnection(t *testing.T) {
	s, _ := newSender(t, StatsdOptions{Addr: "udp://127.0.0.1:1"})
	sums := map[string]int{}
	for _, step := range []struct {
		packets int // that the connection takes
		value   float64
	}{{100, 1}, {1, 3}, {100, 7}} {
		var series []*dto.MetricFamily
		for i := range 100 {
			series = append(series, decisionsOf(fmt.Sprint("rule", i), step.value))
		}
		conn := &failing{left: step.packets}
		if err := s.write(conn, series); (err != nil) != (step.packets == 1) {
			t.Fatalf("the connection takes %d packets, and the error is %v", step.packets, err)
		}
		for line := range strings.SplitSeq(strings.Join(conn.got, "\n"), "\n") {
			name, rest, _ := strings.Cut(line, ":")
			n, err := strconv.Atoi(strings.TrimSuffix(rest, "|c"))
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			sums[name] += n
		}
	}
	for name, sum := range sums {
		if sum != 7 {
			t.Errorf("%s was told to be %d, want 7", name, sum)
		}
	}
	if len(sums) != 100 {
		t.Errorf("%d counters were told, want 100", len(sums))
	}
}

// A socket that nobody reads from takes no more than its time.
func TestStatsdSlowReceiver(t *testing.T) {
	r := listen(t, "unixgram", filepath.Join(t.TempDir(), "s"))
	s, log := newSender(t, StatsdOptions{Addr: "unix://" + r.conn.LocalAddr().String()})
	var series []*dto.MetricFamily
	for i := range 100_000 { // more than its buffer has
		series = append(series, decisionsOf(fmt.Sprint("rule", i), 1))
	}
	s.send(t.Context(), of(series...), 50*time.Millisecond)
	if !strings.Contains(log.String(), "timeout") {
		t.Errorf("the log does not tell of the timeout: %s", log)
	}
}

// The last counts are sent when the process ends.
func TestStatsdSendsAtTheEnd(t *testing.T) {
	r, addr := udp(t)
	s, _ := newSender(t, StatsdOptions{Addr: addr})
	s.o.Interval = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Run(ctx, of(decisionsOf("a", 3)))
	if diff := cmp.Diff([]string{"weir.decisions.shop.a.-.denied:3|c", "weir.zero:0|g"}, r.lines(last)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStatsdOptions(t *testing.T) {
	good := StatsdOptions{Addr: "udp://127.0.0.1:8125", Format: statsdFormat, Prefix: "weir."}
	for _, tt := range []struct {
		change func(*StatsdOptions)
		want   string
	}{
		{func(*StatsdOptions) {}, ""},
		{func(o *StatsdOptions) { o.Addr = "unix:///run/dsd.socket" }, ""},
		{func(o *StatsdOptions) { o.Format, o.Tags = dogstatsdFormat, []string{"env:prod"} }, ""},
		{
			func(o *StatsdOptions) { o.Addr = "127.0.0.1:8125" },
			`addr: write udp://HOST:PORT, tcp://HOST:PORT or unix:///PATH, got "127.0.0.1:8125"`,
		},
		{
			func(o *StatsdOptions) { o.Addr = "unix://run/x" },
			`addr: write udp://HOST:PORT, tcp://HOST:PORT or unix:///PATH, got "unix://run/x"`,
		},
		{
			func(o *StatsdOptions) { o.Addr = "udp://localhost" },
			`addr: write udp://HOST:PORT, such as udp://127.0.0.1:8125, got "udp://localhost"`,
		},
		{func(o *StatsdOptions) { o.Format = "graphite" }, `format: must be statsd or dogstatsd, got "graphite"`},
		{func(o *StatsdOptions) { o.Prefix = "a b" }, `prefix: must be up to 100 letters, digits, _, . and -, got "a b"`},
		{
			func(o *StatsdOptions) { o.Tags = []string{"a:b"} },
			`tag: statsd has no tags: use --statsd-format dogstatsd, or put it into --statsd-prefix`,
		},
		{
			func(o *StatsdOptions) { o.Format, o.Tags = dogstatsdFormat, []string{"prod"} },
			`tag: write NAME:VALUE without spaces, commas, | and #, such as env:prod, got "prod"`,
		},
		{
			func(o *StatsdOptions) { o.Format, o.Tags = dogstatsdFormat, []string{"a:" + strings.Repeat("b", 400)} },
			`tag: all together may have 400 bytes, got 402`,
		},
	} {
		o := good
		tt.change(&o)
		_, err := NewStatsd(o)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%+v: %q, want %q", o, got, tt.want)
		}
	}
}
