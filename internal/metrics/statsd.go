package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weir-ratelimit/weir/internal/flags"
)

// Maximum sizes in statsd, in bytes.
const (
	maxPacket = 1432 // fits into an Ethernet frame of 1500 bytes, even through a tunnel
	maxPart   = 200  // maximum length of a part of a name, and of a tag's value
	maxTags   = 400  // maximum length of all configured tags
)

// lastSend is the time that a stopping process waits for its last packets.
const lastSend = time.Second

// Values of StatsdOptions.Format.
const (
	statsdFormat    = "statsd"
	dogstatsdFormat = "dogstatsd"
)

// StatsdOptions are the flags of statsd.
type StatsdOptions struct {
	Addr string `env:"ADDR" placeholder:"ADDR" help:"Send the metrics of envoyproxy/ratelimit by statsd to udp://HOST:PORT, tcp://HOST:PORT or unix:///PATH."`
	// Format is statsd, with labels as parts of the name, or dogstatsd, with labels as tags.
	Format   string        `env:"FORMAT" default:"statsd" help:"statsd, with labels as parts of the name, or dogstatsd, with labels as tags."`
	Interval time.Duration `env:"INTERVAL" default:"10s" help:"Time between two sends."`
	Tags     []string      `name:"tag" env:"TAG" placeholder:"NAME:VALUE" help:"A tag for every metric, with dogstatsd. Repeatable."`
	// Log receives a line when sending begins to fail, and when it works again.
	Log *slog.Logger `kong:"-"`
}

// Statsd sends the metrics of envoyproxy/ratelimit periodically in the format of statsd or DogStatsD. It does not delay
// requests. It is not safe for concurrent use.
type Statsd struct {
	o             StatsdOptions
	from          prometheus.Gatherer
	network, addr string
	tags          string             // configured tags
	sent          map[string]float64 // values that the receiver has, by name and tags
	failing       bool
}

var statsdTag = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./-]*:[^,|#\s]+$`)

// address returns the network and the address to send to.
func (o *StatsdOptions) address() (network, addr string, err error) {
	scheme, host, _ := strings.Cut(o.Addr, "://")
	if scheme == "udp" || scheme == "tcp" {
		if _, port, err := net.SplitHostPort(host); err != nil || port == "" {
			return "", "", fmt.Errorf("write %[1]s://HOST:PORT, such as %[1]s://127.0.0.1:8125, got %[2]q", scheme, o.Addr)
		}
		return scheme, host, nil
	}
	if path, ok := strings.CutPrefix(o.Addr, "unix://"); ok && strings.HasPrefix(path, "/") {
		return "unixgram", path, nil
	}
	return "", "", fmt.Errorf("write udp://HOST:PORT, tcp://HOST:PORT or unix:///PATH, got %q", o.Addr)
}

// Check checks the flags.
func (o *StatsdOptions) Check(e *flags.Errors) {
	if o.Addr == "" {
		e.Check(len(o.Tags) == 0, "--statsd-tag", "needs --statsd-addr")
		return
	}
	flags.Between(e, "--statsd-interval", o.Interval, time.Second, time.Hour)
	_, _, err := o.address()
	e.Check(err == nil, "--statsd-addr", "%w", err)
	e.Check(o.Format == statsdFormat || o.Format == dogstatsdFormat, "--statsd-format",
		"must be statsd or dogstatsd, got %q", o.Format)
	e.Check(len(o.Tags) == 0 || o.Format != statsdFormat, "--statsd-tag",
		"statsd has no tags: use --statsd-format dogstatsd")
	for _, t := range o.Tags {
		e.Check(statsdTag.MatchString(t), "--statsd-tag", "write NAME:VALUE without spaces, commas, | and #, such as "+
			"env:prod, got %q", t)
	}
	all := strings.Join(o.Tags, ",")
	e.Check(len(all) <= maxTags, "--statsd-tag", "all tags together may have %d bytes, got %d", maxTags, len(all))
}

// NewStatsd returns a sender of from's metrics. It does not connect.
func NewStatsd(o StatsdOptions, from prometheus.Gatherer) (*Statsd, error) {
	s := &Statsd{o: o, from: from, tags: strings.Join(o.Tags, ",")}
	var err error
	s.network, s.addr, err = o.address()
	return s, err
}

// Run sends changes at each interval, and when ctx is done, a last time.
func (s *Statsd) Run(ctx context.Context) {
	tick := time.NewTicker(s.o.Interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.send(ctx, s.o.Interval/2)
		case <-ctx.Done():
			s.send(context.WithoutCancel(ctx), min(lastSend, s.o.Interval/2))
			return
		}
	}
}

// send sends changes within timeout. It connects each time, so that it follows changes of a host name's address.
func (s *Statsd) send(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	families, err := s.from.Gather() // if only some families have an error, GET /metrics reports it
	if len(families) == 0 {
		s.log(ctx, err)
		return
	}
	conn, err := new(net.Dialer).DialContext(ctx, s.network, s.addr)
	if err != nil {
		s.log(ctx, err)
		return
	}
	deadline, _ := ctx.Deadline()
	err = conn.SetDeadline(deadline)
	if err == nil {
		err = s.write(conn, families)
	}
	s.log(ctx, errors.Join(err, conn.Close()))
}

func (s *Statsd) log(ctx context.Context, err error) {
	switch {
	case err != nil && !s.failing:
		s.o.Log.LogAttrs(ctx, slog.LevelWarn, "metrics cannot be sent to statsd; counts are sent later",
			slog.String("addr", s.o.Addr), slog.String("error", err.Error()))
	case err == nil && s.failing:
		s.o.Log.LogAttrs(ctx, slog.LevelInfo, "metrics are sent to statsd again", slog.String("addr", s.o.Addr))
	}
	s.failing = err != nil
}

// total is a statsd counter. Series whose names are equal after clean are added.
type total struct {
	name, tags string
	value      float64
}

// totals returns the counters of the series in order, and the counts and sums of histograms.
func (s *Statsd) totals(families []*dto.MetricFamily) (all []total) {
	at := map[string]int{} // index in all, by name and tags
	add := func(name, tags string, value float64) {
		if i, ok := at[name+tags]; ok {
			all[i].value += value
			return
		}
		at[name+tags] = len(all)
		all = append(all, total{name, tags, value})
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name, tags := s.name(f.GetName(), m.GetLabel())
			if h := m.GetHistogram(); h != nil {
				add(name+".count", tags, float64(h.GetSampleCount()))
				add(name+".sum", tags, h.GetSampleSum())
				continue
			}
			add(name, tags, m.GetCounter().GetValue())
		}
	}
	return all
}

// write sends the growth of the counters in as few packets as possible. It stops at an error; unsent counts are sent
// next time. A counter that is less than before has restarted from 0.
func (s *Statsd) write(to io.Writer, families []*dto.MetricFamily) (err error) {
	before := s.sent
	s.sent = make(map[string]float64, len(before)) // without removed counters
	var packet []byte
	var waiting []total // whose lines are in the packet
	flush := func() {
		if s.network == "tcp" && len(packet) > 0 { // a TCP stream has no packet boundaries
			packet = append(packet, '\n')
		}
		if err == nil && len(packet) > 0 {
			_, err = to.Write(packet)
		}
		for _, t := range waiting {
			if err == nil {
				s.sent[t.name+t.tags] = t.value
			}
		}
		packet, waiting = packet[:0], waiting[:0]
	}
	for _, t := range s.totals(families) {
		had := min(before[t.name+t.tags], t.value)
		s.sent[t.name+t.tags] = had
		if t.value == had {
			continue
		}
		line := t.name + ":" + formatted(t.value-had) + "|c" + t.tags
		if len(packet)+len(line)+2 > maxPacket {
			flush()
		}
		if len(packet) > 0 {
			packet = append(packet, '\n')
		}
		packet, waiting = append(packet, line...), append(waiting, t)
	}
	flush()
	return err
}

func formatted(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }

// classicNames maps metrics whose names differ in form between statsd and Prometheus. * is the label's value.
var classicNames = map[string]string{
	"total_requests":          "ratelimit_server.*.total_requests",
	"response_time_seconds":   "ratelimit_server.*.response_time",
	"should_rate_limit_error": "ratelimit.service.call.should_rate_limit.*",
}

// name returns a series' name in the format, and its tags, with which its line ends.
func (s *Statsd) name(metric string, labels []*dto.LabelPair) (name, tags string) {
	classic := strings.TrimPrefix(metric, "ratelimit_service_")
	rule, isRule := strings.CutPrefix(classic, "rate_limit_")
	if s.o.Format == dogstatsdFormat {
		if isRule {
			classic = "rate_limit." + rule
		}
		return "ratelimit.service." + classic, s.tagged(labels)
	}
	values := strings.Join(classicParts(labels), ".")
	if isRule {
		return "ratelimit.service.rate_limit." + values + "." + rule, ""
	}
	if form := classicNames[classic]; form != "" {
		return strings.ReplaceAll(form, "*", values), ""
	}
	return "ratelimit.service." + classic, ""
}

// classicParts returns the label values in the alphabetical order of the labels, as in envoyproxy/ratelimit's names.
func classicParts(labels []*dto.LabelPair) (parts []string) {
	for _, l := range labels {
		if l.GetValue() != "" { // a rule of one level has no key2
			parts = append(parts, clean(l.GetValue(), func(c rune) bool {
				return c < unicode.MaxASCII && (unicode.IsLetter(c) || unicode.IsDigit(c) || c == '_' || c == '-')
			}))
		}
	}
	return parts
}

// tagged returns the end of a line with these labels and the configured tags.
func (s *Statsd) tagged(labels []*dto.LabelPair) string {
	var all []string
	for _, l := range labels {
		if l.GetValue() != "" {
			all = append(all, l.GetName()+":"+clean(l.GetValue(), func(c rune) bool {
				return unicode.IsPrint(c) && c != ',' && c != '|' && c != '#'
			}))
		}
	}
	if s.tags != "" {
		all = append(all, s.tags)
	}
	if len(all) == 0 {
		return ""
	}
	return "|#" + strings.Join(all, ",")
}

// clean replaces invalid runes and truncates the value.
func clean(value string, isAllowed func(c rune) bool) string {
	value = strings.Map(func(c rune) rune {
		if isAllowed(c) {
			return c
		}
		return '_'
	}, value)
	if len(value) > maxPart {
		value = strings.ToValidUTF8(value[:maxPart], "")
	}
	return value
}

// WriteText writes a line "name: value" per classic counter, and per histogram's count and sum, with statsd's names.
func (m *Metrics) WriteText(w io.Writer) error {
	families, err := m.classic.Gather()
	if len(families) == 0 {
		return err
	}
	names := Statsd{o: StatsdOptions{Format: statsdFormat}}
	var lines []string
	for _, t := range names.totals(families) {
		lines = append(lines, t.name+": "+formatted(t.value)+"\n")
	}
	slices.Sort(lines)
	_, err = io.WriteString(w, strings.Join(lines, ""))
	return err
}
