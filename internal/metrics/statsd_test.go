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
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func TestMain(m *testing.M) { casetest.FindLeaks(m) }

// patience is how long a packet may take to arrive.
const patience = 5 * time.Minute

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

// lines are those of packets, without the last one.
func (r *receiver) lines(last string) []string {
	r.t.Helper()
	all := strings.Split(strings.Join(r.packets(last), "\n"), "\n")
	return all[:len(all)-1]
}

func newSender(t *testing.T, o StatsdOptions) (*Statsd, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	o.Interval = time.Second
	if o.Format == "" {
		o.Format = statsdFormat
	}
	s, err := NewStatsd(o, of())
	if err != nil {
		t.Fatal(err)
	}
	return s, &log
}

// of are series to send. After them comes a counter that always grows, by which a test recognizes the end.
func of(series ...*dto.MetricFamily) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		ends++
		return append(series, counterOf("ratelimit_service_end", ends)), nil
	})
}

// ends grows with each sending of all tests of this file, none of which runs in parallel.
var ends float64

const last = "ratelimit.service.end:"

// counterOf is a counter with these names and values of labels.
func counterOf(name string, value float64, labels ...string) *dto.MetricFamily {
	m := &dto.Metric{Counter: &dto.Counter{Value: &value}}
	for i := 0; i < len(labels); i += 2 {
		m.Label = append(m.Label, &dto.LabelPair{Name: &labels[i], Value: &labels[i+1]})
	}
	return &dto.MetricFamily{Name: &name, Metric: []*dto.Metric{m}}
}

func histogramOf(count uint64, sum float64) *dto.MetricFamily {
	name, label, method := "ratelimit_service_response_time_seconds", "grpc_method", "ShouldRateLimit"
	return &dto.MetricFamily{Name: &name, Metric: []*dto.Metric{{
		Label:     []*dto.LabelPair{{Name: &label, Value: &method}},
		Histogram: &dto.Histogram{SampleCount: &count, SampleSum: &sum},
	}}}
}

func hitsOf(rule string, n float64) *dto.MetricFamily {
	return counterOf("ratelimit_service_rate_limit_total_hits", n, "domain", "shop", "key1", rule, "key2", "")
}

func send(t *testing.T, s *Statsd, from prometheus.Gatherer) {
	t.Helper()
	s.from = from
	s.send(t.Context(), patience)
}

// Counters are sent as what they have grown by, and not at all if they have not.
func TestStatsdCounters(t *testing.T) {
	r, addr := udp(t)
	s, _ := newSender(t, StatsdOptions{Addr: addr})
	for _, step := range []struct {
		value float64
		want  []string
	}{
		{3, []string{"ratelimit.service.rate_limit.shop.api_key.total_hits:3|c"}},
		{3, nil},
		{10, []string{"ratelimit.service.rate_limit.shop.api_key.total_hits:7|c"}},
		{4, nil}, // began again
		{9, []string{"ratelimit.service.rate_limit.shop.api_key.total_hits:5|c"}},
	} {
		send(t, s, of(hitsOf("api_key", step.value)))
		if diff := cmp.Diff(step.want, r.lines(last), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("the counter is %v (-want +got):\n%s", step.value, diff)
		}
	}
	if len(s.sent) != 2 { // the end's, too
		t.Errorf("%d counters are remembered, want 2", len(s.sent))
	}
	send(t, s, of())
	if len(s.sent) != 1 {
		t.Errorf("a counter that is gone is remembered")
	}
}

// What a rule is called never breaks a line, and rules that look the same add up.
func TestStatsdNames(t *testing.T) {
	series := []*dto.MetricFamily{
		hitsOf("path=/a.b:c|d\n#é > x", 1), hitsOf("path=/a_b.c_d__é > x", 1),
		hitsOf(strings.Repeat("r", 1000), 1),
		counterOf("ratelimit_service_rate_limit_over_limit", 2, "domain", "a.b", "key1", "k_v.w", "key2", ""),
		counterOf("ratelimit_service_rate_limit_near_limit", 2, "domain", "a", "key1", "k", "key2", "l"),
		counterOf("ratelimit_service_config_load_success", 1),
		counterOf("ratelimit_service_should_rate_limit_error", 1, "err_type", "redis_error"),
		counterOf("ratelimit_service_total_requests", 1, "grpc_method", "ShouldRateLimit"),
	}
	cut := strings.Repeat("r", maxPart)
	for format, want := range map[string][]string{
		statsdFormat: {
			"ratelimit.service.rate_limit.shop.path__a_b_c_d______x.total_hits:2|c",
			"ratelimit.service.rate_limit.shop." + cut + ".total_hits:1|c",
			"ratelimit.service.rate_limit.a_b.k_v_w.over_limit:2|c",
			"ratelimit.service.rate_limit.a.k.l.near_limit:2|c",
			"ratelimit.service.config_load_success:1|c",
			"ratelimit.service.call.should_rate_limit.redis_error:1|c",
			"ratelimit_server.ShouldRateLimit.total_requests:1|c",
		},
		dogstatsdFormat: {
			"ratelimit.service.rate_limit.total_hits:1|c|#domain:shop,key1:path=/a.b:c_d__é > x,env:prod,team:a/b",
			"ratelimit.service.rate_limit.total_hits:1|c|#domain:shop,key1:path=/a_b.c_d__é > x,env:prod,team:a/b",
			"ratelimit.service.rate_limit.total_hits:1|c|#domain:shop,key1:" + cut + ",env:prod,team:a/b",
			"ratelimit.service.rate_limit.over_limit:2|c|#domain:a.b,key1:k_v.w,env:prod,team:a/b",
			"ratelimit.service.rate_limit.near_limit:2|c|#domain:a,key1:k,key2:l,env:prod,team:a/b",
			"ratelimit.service.config_load_success:1|c|#env:prod,team:a/b",
			"ratelimit.service.should_rate_limit_error:1|c|#err_type:redis_error,env:prod,team:a/b",
			"ratelimit.service.total_requests:1|c|#grpc_method:ShouldRateLimit,env:prod,team:a/b",
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

// A histogram is sent as what its count and its sum have grown by.
func TestStatsdHistogram(t *testing.T) {
	r, addr := udp(t)
	s, _ := newSender(t, StatsdOptions{Addr: addr})
	for _, step := range []struct {
		series *dto.MetricFamily
		want   []string
	}{
		{histogramOf(0, 0), nil},
		{histogramOf(100, 75.5), []string{
			"ratelimit_server.ShouldRateLimit.response_time.count:100|c",
			"ratelimit_server.ShouldRateLimit.response_time.sum:75.5|c",
		}},
		{histogramOf(104, 90), []string{
			"ratelimit_server.ShouldRateLimit.response_time.count:4|c",
			"ratelimit_server.ShouldRateLimit.response_time.sum:14.5|c",
		}},
	} {
		send(t, s, of(step.series))
		if diff := cmp.Diff(step.want, r.lines(last), cmpopts.EquateEmpty()); diff != "" {
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
		series = append(series, hitsOf(fmt.Sprintf("rule%d-%s", i, strings.Repeat("x", i%300)), 1))
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
	send(t, s, of(hitsOf("a", 3)))
	send(t, s, of(hitsOf("a", 5)))
	n := strings.Count(log.String(), "\n")
	if n != 1 || !strings.Contains(log.String(), "metrics cannot be sent to statsd") {
		t.Errorf("%d lines, want one that says that nothing can be sent:\n%s", n, log)
	}
	r := listen(t, "unixgram", path)
	send(t, s, of(hitsOf("a", 6)))
	if diff := cmp.Diff([]string{"ratelimit.service.rate_limit.shop.a.total_hits:6|c"}, r.lines(last)); diff != "" {
		t.Errorf("after the receiver is there (-want +got):\n%s", diff)
	}
	n = strings.Count(log.String(), "\n")
	if n != 2 || !strings.Contains(log.String(), "metrics are sent to statsd again") {
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
func TestStatsdBrokenConnection(t *testing.T) {
	s, _ := newSender(t, StatsdOptions{Addr: "udp://127.0.0.1:1"})
	sums := map[string]int{}
	for _, step := range []struct {
		packets int // that the connection takes
		value   float64
	}{{100, 1}, {1, 3}, {100, 7}} {
		var series []*dto.MetricFamily
		for i := range 100 {
			series = append(series, hitsOf(fmt.Sprint("rule", i), step.value))
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
		series = append(series, hitsOf(fmt.Sprint("rule", i), 1))
	}
	s.from = of(series...)
	s.send(t.Context(), 50*time.Millisecond)
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
	s.from = of(hitsOf("a", 3))
	s.Run(ctx)
	if diff := cmp.Diff([]string{"ratelimit.service.rate_limit.shop.a.total_hits:3|c"}, r.lines(last)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStatsdOptions(t *testing.T) {
	for _, tt := range casetest.Table[struct {
		StatsdOptions `yaml:",inline"`
		Want          string
	}](t, "testdata/statsd_options.yaml") {
		o := tt.StatsdOptions
		o.Interval = time.Second
		var e flags.Errors
		o.Check(&e)
		got, err := "", e.Join()
		if err != nil {
			got = err.Error()
		}
		if got != tt.Want {
			t.Errorf("%+v: %q, want %q", o, got, tt.Want)
		}
	}
}
