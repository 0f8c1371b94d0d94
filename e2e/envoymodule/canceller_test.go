//go:build e2e

package envoymodule

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// What a canceller does on each of its connections.
const (
	cancelConns   = 4
	cancelStreams = 12 // opened at once
	cancelKept    = 6  // one of so many is not reset
)

// canceller is a client that opens streams in one write and resets most of them at once, on several connections. It
// connects again if Envoy closes a connection, or does not listen.
type canceller struct {
	addr string

	opened, reset, answered, lost atomic.Int64 // streams, their responses, connections
}

// add adds what another one counted.
func (c *canceller) add(other *canceller) {
	c.opened.Add(other.opened.Load())
	c.reset.Add(other.reset.Load())
	c.answered.Add(other.answered.Load())
	c.lost.Add(other.lost.Load())
}

// run works until ctx ends.
func (c *canceller) run(ctx context.Context) {
	var wait sync.WaitGroup
	for range cancelConns {
		wait.Go(func() {
			for ctx.Err() == nil {
				if err := c.connect(ctx); err != nil && ctx.Err() == nil {
					c.lost.Add(1)
					sleep(ctx, time.Millisecond)
				}
			}
		})
	}
	wait.Wait()
}

// cancelConn is a connection of a canceller.
type cancelConn struct {
	*canceller

	mu     sync.Mutex // of what is written
	out    *bufio.Writer
	framer *http2.Framer
	block  bytes.Buffer
	hpack  *hpack.Encoder
	next   uint32 // stream
}

// connect uses one connection until it is closed, or ctx ends.
func (c *canceller) connect(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it may be closed already
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	x := &cancelConn{canceller: c, out: bufio.NewWriter(conn), next: 1}
	x.framer, x.hpack = http2.NewFramer(x.out, bufio.NewReader(conn)), hpack.NewEncoder(&x.block)
	if _, err := io.WriteString(x.out, http2.ClientPreface); err != nil {
		return err
	}
	if err := x.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}); err != nil {
		return err
	}
	if err := x.framer.WriteWindowUpdate(0, 1<<30); err != nil {
		return err
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		defer conn.Close() //nolint:errcheck // ends the writes
		_ = x.read()
	})
	defer conn.Close() //nolint:errcheck // ends the reads
	for {
		if err := x.round(ctx); err != nil {
			return err
		}
		sleep(ctx, time.Duration(rand.IntN(casetest.Pick(12, 3)))*time.Millisecond)
	}
}

// read answers the server's frames, and counts responses.
func (x *cancelConn) read() error {
	for {
		f, err := x.framer.ReadFrame()
		if err != nil {
			return err
		}
		x.mu.Lock()
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = x.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = x.framer.WritePing(true, f.Data)
			}
		case *http2.HeadersFrame:
			x.answered.Add(1)
		case *http2.GoAwayFrame:
			err = io.EOF
		}
		if err == nil {
			err = x.out.Flush()
		}
		x.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// round opens streams and resets most of them, in the same write or a moment later.
func (x *cancelConn) round(ctx context.Context) error {
	var ids []uint32
	atOnce := rand.IntN(2) == 0
	if err := x.write(func() error {
		for range cancelStreams {
			ids = append(ids, x.next)
			if err := x.open(); err != nil {
				return err
			}
		}
		if atOnce {
			return nil
		}
		return x.out.Flush()
	}); err != nil {
		return err
	}
	if !atOnce {
		sleep(ctx, time.Duration(rand.IntN(1000))*time.Microsecond)
	}
	return x.write(func() error {
		for _, id := range ids {
			if rand.IntN(cancelKept) == 0 {
				continue
			}
			x.reset.Add(1)
			if err := x.framer.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
				return err
			}
		}
		return x.out.Flush()
	})
}

func (x *cancelConn) write(frames func() error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return frames()
}

// open sends a request: without a body, with one, with one that has no end, or with trailers. The filter behind Weir's
// answers some of them.
func (x *cancelConn) open() error {
	id, shape := x.next, rand.IntN(4)
	x.next += 2
	x.opened.Add(1)
	path := []string{"/", "/own"}[rand.IntN(2)]
	headers := []string{":method", "POST", ":scheme", "http", ":authority", "front", ":path", path, "x-key", "ann"}
	if rand.IntN(8) == 0 {
		headers = append(headers, "x-envoy-fault-abort-request", "418")
	}
	if err := x.writeHeaders(id, shape == 0, headers...); err != nil || shape == 0 {
		return err
	}
	if err := x.framer.WriteData(id, shape == 1, make([]byte, rand.IntN(2000))); err != nil || shape < 3 {
		return err
	}
	return x.writeHeaders(id, true, "x-trailer", "end")
}

func (x *cancelConn) writeHeaders(id uint32, end bool, headers ...string) error {
	x.block.Reset()
	for i := 0; i < len(headers); i += 2 {
		if err := x.hpack.WriteField(hpack.HeaderField{Name: headers[i], Value: headers[i+1]}); err != nil {
			return err
		}
	}
	return x.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: x.block.Bytes(), EndHeaders: true, EndStream: end,
	})
}
