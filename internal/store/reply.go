package store

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
)

// Bounds of one reply of a server; see docs/adr/0033. go-redis makes room for what a reply announces before it comes,
// and reads lists in lists by recursion.
const (
	// maxReplyBytes is the most that the texts of a reply have together. The longest states, sets of rules and lists of
	// keys are below half of it.
	maxReplyBytes = 32 << 20
	// maxReplyItems is the most items that the lists of a reply have together: two for each hit of the largest request.
	maxReplyItems = 1 << 18
	// maxReplyDepth is how many lists may be in each other. A cluster's slots are 4.
	maxReplyDepth = 16
	// maxReplyLine is the longest line, in bytes: an error, a number, a length.
	maxReplyLine = 8 << 10
)

// errReply is wrapped by what is wrong with a reply. It ends the connection.
var errReply = errors.New("this is no reply of a Redis")

// boundedConn is a connection whose replies are bounded. As of any net.Conn, one goroutine at a time reads.
type boundedConn struct {
	net.Conn

	reply replyBounds
}

// Read implements net.Conn. An error that wraps errReply closes the connection: what follows cannot be understood.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		if wrong := c.reply.follow(p[:n]); wrong != nil {
			return 0, errors.Join(wrong, c.Close())
		}
	}
	return n, err
}

// replyBounds follows the replies of a connection, as far as to know what they announce.
type replyBounds struct {
	head [32]byte // of the line under way
	line int      // its length so far
	skip int      // bytes left of the text under way, with its CRLF

	open  [maxReplyDepth]int // items left of each list under way, the outermost first
	depth int
	bytes int // announced by the reply under way
	items int
}

// follow is given all that is read, in order.
func (r *replyBounds) follow(p []byte) error {
	for len(p) > 0 {
		if r.skip > 0 {
			n := min(r.skip, len(p))
			p, r.skip = p[n:], r.skip-n
			if r.skip == 0 {
				r.ended()
			}
			continue
		}
		end := bytes.IndexByte(p, '\n') + 1
		part := p
		if end > 0 {
			part = p[:end]
		}
		if r.line < len(r.head) {
			copy(r.head[r.line:], part)
		}
		if r.line += len(part); r.line > maxReplyLine {
			return fmt.Errorf("%w: it has a line of more than %d bytes, which begins with %.80q", errReply, maxReplyLine,
				r.head[:])
		}
		if end == 0 {
			return nil
		}
		p = p[end:]
		if err := r.announced(); err != nil {
			return err
		}
		r.line = 0
	}
	return nil
}

// announced reads a line that is complete.
func (r *replyBounds) announced() error {
	switch kind := r.head[0]; kind {
	case '$', '=', '!': // a text
		n, err := r.number()
		if err != nil {
			return err
		}
		if n < 0 {
			r.ended()
			return nil
		}
		if n > maxReplyBytes-r.bytes {
			return fmt.Errorf("%w: it announces a text of %d bytes, the most is %d", errReply, n, maxReplyBytes)
		}
		r.bytes += n
		r.skip = n + len("\r\n")
	case '*', '~', '>', '%': // a list; of pairs
		n, err := r.number()
		if err != nil {
			return err
		}
		size := 1 // of an item
		if kind == '%' {
			size = 2
		}
		if n > (maxReplyItems-r.items)/size {
			return fmt.Errorf("%w: it announces a list of %d items, the most is %d", errReply, n, maxReplyItems/size)
		}
		if n *= size; n <= 0 {
			r.ended()
			return nil
		}
		if r.depth == maxReplyDepth {
			return fmt.Errorf("%w: it has more than %d lists in each other", errReply, maxReplyDepth)
		}
		r.items += n
		r.open[r.depth] = n
		r.depth++
	case '|': // go-redis reads what follows by recursion, and never asks for the protocol that has them
		return fmt.Errorf("%w: it has an attribute", errReply)
	default:
		r.ended()
	}
	return nil
}

// number is what the line announces, -1 for nothing.
func (r *replyBounds) number() (int, error) {
	line := r.head[1:min(r.line, len(r.head))]
	n, err := strconv.Atoi(string(bytes.TrimRight(line, "\r\n")))
	if err != nil || n < -1 || r.line > len(r.head) {
		return 0, fmt.Errorf("%w: %q announces no length", errReply, r.head[:min(r.line, len(r.head))])
	}
	return n, nil
}

// ended notes that an item, and with it all lists whose last one it is, is complete.
func (r *replyBounds) ended() {
	for r.depth > 0 {
		last := &r.open[r.depth-1]
		if *last--; *last > 0 {
			return
		}
		r.depth--
	}
	r.bytes, r.items = 0, 0
}
