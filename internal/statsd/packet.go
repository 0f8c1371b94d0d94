package statsd

import (
	"net"
	"strconv"
)

// packet collects lines and sends them together.
type packet struct {
	to     net.Conn
	before map[string]float64 // the counters that were told before,
	told   map[string]float64 // and now
	kept   []counted          // of the lines that are not sent yet
	lines  []byte
	err    error
}

type counted struct {
	id    string
	value float64
}

// count adds what the counter has grown by. A counter that is less than before began anew.
func (p *packet) count(id, name, tags string, value float64) {
	grown := value - p.before[id]
	if grown < 0 {
		grown = value
	}
	if grown > 0 {
		p.add(name, grown, "|c"+tags)
	}
	p.keep(id, value)
}

// keep remembers the value once the lines are sent.
func (p *packet) keep(id string, value float64) { p.kept = append(p.kept, counted{id, value}) }

// add puts a line into the packet, after sending it if there is no room.
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

// flush sends the lines. Of those that could not be sent, the counters stay as they were told before.
func (p *packet) flush() {
	if p.err == nil && len(p.lines) > 0 {
		_, p.err = p.to.Write(p.lines)
	}
	for _, c := range p.kept {
		if p.err == nil {
			p.told[c.id] = c.value
		} else if before, ok := p.before[c.id]; ok {
			p.told[c.id] = before
		}
	}
	p.lines, p.kept = p.lines[:0], p.kept[:0]
}
