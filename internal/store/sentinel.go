package store

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// What go-redis writes to a Sentinel, each in one write.
var (
	asksMaster = []byte("*3\r\n$8\r\nsentinel\r\n$23\r\nget-master-addr-by-name\r\n")
	subscribes = []byte("\r\n$9\r\nsubscribe\r\n")
)

// sentinelConn is a connection to a Sentinel, or to a master that it names. go-redis reads a master's address without a
// look at how many fields it has, in goroutines where nobody recovers a panic: an address that lacks some ends the
// connection. As of any net.Conn, one goroutine at a time reads; as with go-redis, what was written is answered before
// more is written.
type sentinelConn struct {
	net.Conn

	asks     bool          // the next reply is a master's address
	messages *bufio.Reader // of the subscription; nil without one
	next     []byte        // of the message under way
	wrong    error         // why nothing is read any more
}

// Write implements net.Conn.
func (c *sentinelConn) Write(p []byte) (int, error) {
	c.asks = bytes.HasPrefix(p, asksMaster)
	if c.messages == nil && bytes.Contains(p[:min(len(p), 32)], subscribes) {
		c.messages = bufio.NewReader(c.Conn)
	}
	return c.Conn.Write(p)
}

// Read implements net.Conn. An error that wraps errReply, of an address that lacks fields, ends the connection, as does
// any within a message. Each further Read returns it, too, since go-redis ignores that of a first look.
func (c *sentinelConn) Read(p []byte) (n int, err error) {
	if c.wrong != nil {
		return 0, c.wrong
	}
	switch {
	case c.messages != nil:
		if len(c.next) == 0 {
			err = c.readMessage()
		}
		if err == nil {
			n = copy(p, c.next)
			c.next = c.next[n:]
		}
	case c.asks:
		if n, err = io.ReadAtLeast(c.Conn, p, len("*2\r\n")); err == nil {
			err = checkMaster(p[:n])
		}
		c.asks = false
	default:
		return c.Conn.Read(p)
	}
	if errors.Is(err, errReply) || err != nil && len(c.next) > 0 { // or what follows is not the beginning of a message
		c.wrong = errors.Join(err, c.Close())
		return 0, c.wrong
	}
	return n, err
}

// checkMaster returns an error if a reply begins a list that is no host and port.
func checkMaster(reply []byte) error {
	isList := bytes.IndexByte([]byte("*~>"), reply[0]) >= 0
	if isList && !bytes.HasPrefix(reply[1:], []byte("2\r\n")) && !bytes.HasPrefix(reply[1:], []byte("-1\r")) {
		return fmt.Errorf("%w: %.20q does not begin the address of a master", errReply, reply)
	}
	return nil
}

// readMessage reads what the subscription sends: a line, or a list of texts and numbers.
func (c *sentinelConn) readMessage() error {
	c.next = c.next[:0]
	line, err := c.readLine()
	if err != nil || line[0] == '+' || line[0] == '-' {
		return err
	}
	items, err := length(line, '*')
	if err != nil {
		return err
	}
	var texts [3][]byte
	for i := range items {
		if line, err = c.readLine(); err != nil {
			return err
		}
		if line[0] == ':' {
			continue
		}
		n, err := length(line, '$')
		if err != nil {
			return err
		}
		if n < 0 {
			continue
		}
		text := make([]byte, n+len("\r\n"))
		if _, err := io.ReadFull(c.messages, text); err != nil {
			return err
		}
		c.next = append(c.next, text...)
		if i < len(texts) {
			texts[i] = text[:n]
		}
	}
	const spaces = 4 // name, old host and port, new host and port
	if string(texts[0]) == "message" && string(texts[1]) == "+switch-master" &&
		bytes.Count(texts[2], []byte(" ")) < spaces {
		return fmt.Errorf("%w: +switch-master %.80q names no master", errReply, texts[2])
	}
	return nil
}

// length is what a line of this kind announces, -1 for nothing.
func length(line []byte, kind byte) (int, error) {
	n, err := strconv.Atoi(string(bytes.TrimRight(line[1:], "\r\n")))
	if err != nil || line[0] != kind || n < -1 {
		return 0, fmt.Errorf("%w: %.80q in what a subscription hears", errReply, line)
	}
	return n, nil
}

// readLine returns the next line of a message, which is not empty.
func (c *sentinelConn) readLine() ([]byte, error) {
	line, err := c.messages.ReadSlice('\n')
	c.next = append(c.next, line...)
	return line, err
}
