// Package statsd sends the process's metrics in statsd's and DogStatsD's format, at an interval: never on the way of a
// request.
package statsd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/metrics"
)

// Bounds of what is sent.
const (
	// maxPacket is the largest packet: what an Ethernet frame of 1500 bytes carries, by any tunnel.
	maxPacket = 1432
	// maxPart is the longest part of a name, and the longest value of a tag.
	maxPart = 200
	// maxTags is the most bytes of all tags that are configured.
	maxTags = 400
	// lastSend is how long a process that ends waits for its last packets.
	lastSend = time.Second
)

// The formats.
const (
	plain     = "statsd"
	dogstatsd = "dogstatsd"
)

// Options say where to, and how.
type Options struct {
	// Addr is udp://HOST:PORT or unix:///PATH, a socket of datagrams.
	Addr string
	// Format is statsd, where labels are parts of the name, or dogstatsd, where they are tags.
	Format string
	// Prefix begins each name.
	Prefix string
	// Tags, NAME:VALUE, go with everything that is sent by dogstatsd.
	Tags []string
	// Interval is the time from one sending to the next.
	Interval time.Duration
	// Log is told once when sending fails, and once when it works again.
	Log *slog.Logger
}

// Sender sends what has changed. It is for one goroutine.
type Sender struct {
	o             Options
	network, addr string
	tags          string             // of the options
	told          map[string]float64 // the counters as the receiver was told
	failing       bool
}

var (
	prefixes = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,100}$`)
	tag      = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./-]*:[^,|#\s]+$`)
)

// New checks the options. It does not connect.
func New(o Options) (*Sender, error) {
	s := &Sender{o: o, tags: strings.Join(o.Tags, ",")}
	var errs []error
	if host, ok := strings.CutPrefix(o.Addr, "udp://"); ok {
		s.network, s.addr = "udp", host
		if _, port, err := net.SplitHostPort(host); err != nil || port == "" {
			errs = append(errs, fmt.Errorf("addr: write udp://HOST:PORT, such as udp://127.0.0.1:8125, got %q", o.Addr))
		}
	} else if path, ok := strings.CutPrefix(o.Addr, "unix://"); ok && strings.HasPrefix(path, "/") {
		s.network, s.addr = "unixgram", path
	} else {
		errs = append(errs, fmt.Errorf("addr: write udp://HOST:PORT or unix:///PATH, got %q", o.Addr))
	}
	if o.Format != plain && o.Format != dogstatsd {
		errs = append(errs, fmt.Errorf("format: must be statsd or dogstatsd, got %q", o.Format))
	}
	if !prefixes.MatchString(o.Prefix) {
		errs = append(errs, fmt.Errorf("prefix: must be up to 100 letters, digits, _, . and -, got %q", o.Prefix))
	}
	if len(o.Tags) > 0 && o.Format == plain {
		errs = append(errs, errors.New("tag: statsd has no tags: use --statsd-format dogstatsd, or put it into --statsd-prefix"))
	}
	for _, t := range o.Tags {
		if !tag.MatchString(t) {
			errs = append(errs, fmt.Errorf("tag: write NAME:VALUE without spaces, commas, | and #, such as env:prod, got %q", t))
		}
	}
	if len(s.tags) > maxTags {
		errs = append(errs, fmt.Errorf("tag: all together may have %d bytes, got %d", maxTags, len(s.tags)))
	}
	return s, errors.Join(errs...)
}

// Run sends what gather returns until ctx is done, and then once more.
func (s *Sender) Run(ctx context.Context, gather func() ([]metrics.Sample, error)) {
	tick := time.NewTicker(s.o.Interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.send(ctx, gather, s.o.Interval/2)
		case <-ctx.Done():
			s.send(context.WithoutCancel(ctx), gather, min(lastSend, s.o.Interval/2))
			return
		}
	}
}

// send takes at most the time. Each time it connects anew, so that it follows a name that is another host now.
func (s *Sender) send(ctx context.Context, gather func() ([]metrics.Sample, error), most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	samples, err := gather() // an error is of some of them, and told at GET /metrics
	if len(samples) == 0 {
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
		err = s.write(conn, samples)
	}
	s.log(ctx, errors.Join(err, conn.Close()))
}

func (s *Sender) log(ctx context.Context, err error) {
	switch {
	case err != nil && !s.failing:
		s.o.Log.LogAttrs(ctx, slog.LevelWarn, "metrics cannot be sent by statsd; counts are sent once they can",
			slog.String("addr", s.o.Addr), slog.String("error", err.Error()))
	case err == nil && s.failing:
		s.o.Log.LogAttrs(ctx, slog.LevelInfo, "metrics are sent by statsd again", slog.String("addr", s.o.Addr))
	}
	s.failing = err != nil
}

// write sends the samples in as few packets as they fit in. After an error the rest is not tried, and its counts wait for
// the next time.
func (s *Sender) write(to net.Conn, samples []metrics.Sample) error {
	p := &packet{to: to, before: s.told, told: make(map[string]float64, len(s.told))}
	for i := range samples {
		sample := &samples[i]
		name, tags := s.name(sample)
		id := identity(sample)
		switch sample.Kind {
		case metrics.Counter:
			p.count(id, name, tags, sample.Value)
		case metrics.Gauge:
			p.add(name, sample.Value, "|g"+tags)
		case metrics.Histogram:
			s.histogram(p, sample, id, name, tags)
		}
	}
	p.flush()
	s.told = p.told
	return p.err
}

// histogram sends the count and the sum of what came since the last time, and its median and 99th percentile.
func (*Sender) histogram(p *packet, sample *metrics.Sample, id, name, tags string) {
	since := make([]metrics.Bucket, len(sample.Buckets))
	count := float64(sample.Count) - p.before[id+"count"]
	for i, b := range sample.Buckets {
		key := fmt.Sprintf("%s%v", id, b.UpTo)
		since[i] = metrics.Bucket{UpTo: b.UpTo, Count: b.Count - uint64(p.before[key])}
		p.keep(key, float64(b.Count))
	}
	p.count(id+"count", name+".count", tags, float64(sample.Count))
	p.count(id+"sum", name+".sum", tags, sample.Value)
	if count > 0 {
		p.add(name+".p50", quantile(since, count, 0.5), "|g"+tags)
		p.add(name+".p99", quantile(since, count, 0.99), "|g"+tags)
	}
}

// quantile is as Prometheus' histogram_quantile: on a line through the bucket, and the last bound beyond it.
func quantile(buckets []metrics.Bucket, count, q float64) float64 {
	var below metrics.Bucket
	for _, b := range buckets {
		if rank := count * q; float64(b.Count) >= rank {
			part := (rank - float64(below.Count)) / float64(b.Count-below.Count)
			return below.UpTo + (b.UpTo-below.UpTo)*part
		}
		below = b
	}
	return below.UpTo
}
