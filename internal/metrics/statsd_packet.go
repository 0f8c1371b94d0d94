package metrics

import (
	"fmt"
	"net"
	"strconv"

	dto "github.com/prometheus/client_model/go"
)

// packet collects lines of statsd and sends them together.
type packet struct {
	to net.Conn
	// isStream says that a line ends with a line break, since packets have no ends of their own.
	isStream bool
	before   map[string]float64 // the counters that the receiver had before,
	sent     map[string]float64 // and those that it has now
	waiting  []counted          // the counters of the lines that are not sent yet
	lines    []byte
	err      error
}

type counted struct {
	id    string
	value float64
}

// count adds what the counter has grown by. A counter that is less than before started again.
func (p *packet) count(id, name, tags string, value float64) {
	grown := value - p.before[id]
	if grown < 0 {
		grown = value
	}
	if grown > 0 {
		p.add(name, grown, "|c"+tags)
	}
	p.remember(id, value)
}

// histogram adds what the count and the sum have grown by, and the median and 99th percentile of the new values.
func (p *packet) histogram(id, name, tags string, h *dto.Histogram) {
	count := float64(h.GetSampleCount()) - p.before[id+"count"]
	since := make([]bucket, len(h.GetBucket()))
	for i, b := range h.GetBucket() {
		bound, total := b.GetUpperBound(), float64(b.GetCumulativeCount())
		key := fmt.Sprintf("%s%v", id, bound)
		since[i] = bucket{bound, total - p.before[key]}
		p.remember(key, total)
	}
	p.count(id+"count", name+".count", tags, float64(h.GetSampleCount()))
	p.count(id+"sum", name+".sum", tags, h.GetSampleSum())
	if count > 0 {
		p.add(name+".p50", quantile(since, count, 0.5), "|g"+tags)
		p.add(name+".p99", quantile(since, count, 0.99), "|g"+tags)
	}
}

// bucket is how many values of a histogram lie at or below a bound.
type bucket struct{ bound, count float64 }

// quantile interpolates linearly within the bucket, as Prometheus' histogram_quantile does. Beyond the last bound it
// returns that bound.
func quantile(buckets []bucket, count, q float64) float64 {
	var below bucket
	for _, b := range buckets {
		if rank := count * q; b.count >= rank {
			return below.bound + (b.bound-below.bound)*(rank-below.count)/(b.count-below.count)
		}
		below = b
	}
	return below.bound
}

// remember notes the value once the lines are sent.
func (p *packet) remember(id string, value float64) {
	p.waiting = append(p.waiting, counted{id, value})
}

// add puts a line into the packet. If there is no room, it sends the packet first.
func (p *packet) add(name string, value float64, end string) {
	var few [32]byte
	number := strconv.AppendFloat(few[:0], value, 'f', -1, 64)
	if len(p.lines)+len(name)+len(number)+len(end)+2 > maxPacket {
		p.flush()
	}
	if len(p.lines) > 0 {
		p.lines = append(p.lines, '\n')
	}
	p.lines = append(p.lines, name...)
	p.lines = append(p.lines, ':')
	p.lines = append(p.lines, number...)
	p.lines = append(p.lines, end...)
}

// flush sends the lines. After an error, the receiver still has the counters as they were before.
func (p *packet) flush() {
	if p.isStream && len(p.lines) > 0 {
		p.lines = append(p.lines, '\n')
	}
	if p.err == nil && len(p.lines) > 0 {
		_, p.err = p.to.Write(p.lines)
	}
	for _, c := range p.waiting {
		if p.err == nil {
			p.sent[c.id] = c.value
		} else if before, ok := p.before[c.id]; ok {
			p.sent[c.id] = before
		}
	}
	p.lines, p.waiting = p.lines[:0], p.waiting[:0]
}
