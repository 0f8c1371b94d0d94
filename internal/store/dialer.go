package store

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-ratelimit/weir/internal/fileread"
)

// dialer makes the connections to a Redis.
type dialer struct {
	net.Dialer
	tls   *tlsFiles // nil: without TLS
	proxy bool      // it is a proxy
	// answer is how long the server may take to answer a command, from when that was written; 0 leaves it to go-redis.
	answer time.Duration
}

// dial is go-redis's Options.Dialer. What goes wrong is what the connection's reads and writes return: after as many
// failed dials as it may have connections, go-redis dials only once a second, and would miss a server's return for
// longer.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := d.connect(ctx, network, addr)
	if err != nil {
		nobody, _ := net.Pipe()
		conn = failedConn{nobody, err}
	}
	return conn, nil
}

func (d *dialer) connect(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	if d.tls != nil {
		conn, err = d.tls.dial(ctx, &d.Dialer, network, addr)
	} else {
		conn, err = d.DialContext(ctx, network, addr)
	}
	if err != nil {
		return nil, err
	}
	socket, hasSocket := conn.(syscall.Conn)
	conn = &fairConn{conn, d.answer}
	if d.proxy {
		conn = &helloConn{Conn: conn}
	}
	if hasSocket {
		conn = socketConn{conn, socket}
	}
	return conn, nil
}

// lastLook is how long an answer is looked for that may have come while this process did not run.
const lastLook = time.Millisecond

// fairConn does not blame Redis for what this process is late for. go-redis's deadlines count from when a call began;
// here they are no earlier than answer after the command was written, and before a read gives up it looks once more.
type fairConn struct {
	net.Conn

	answer time.Duration
}

// SetWriteDeadline implements net.Conn.
func (c *fairConn) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(c.fair(t)) }

// SetReadDeadline implements net.Conn. go-redis calls it when it has written a command.
func (c *fairConn) SetReadDeadline(t time.Time) error { return c.Conn.SetReadDeadline(c.fair(t)) }

func (c *fairConn) fair(t time.Time) time.Time {
	if fair := time.Now().Add(c.answer); c.answer > 0 && !t.IsZero() && fair.After(t) {
		return fair
	}
	return t
}

// Read implements net.Conn.
func (c *fairConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !errors.Is(err, os.ErrDeadlineExceeded) || c.Conn.SetReadDeadline(time.Now().Add(lastLook)) != nil {
		return n, err
	}
	return c.Conn.Read(p)
}

// socketConn is a connection whose socket can be looked at, by which go-redis finds that it was closed.
type socketConn struct {
	net.Conn
	socket syscall.Conn
}

// SyscallConn implements syscall.Conn.
func (c socketConn) SyscallConn() (syscall.RawConn, error) { return c.socket.SyscallConn() }

// connectError is why a connection could not be made.
type connectError struct{ error }

// Unwrap returns a list, since go-redis takes off what errors.Unwrap can.
func (e connectError) Unwrap() []error { return []error{e.error} }

// failedConn is a connection that could not be made.
type failedConn struct {
	net.Conn // to nobody

	err error
}

func (c failedConn) Read([]byte) (int, error)  { return 0, connectError{c.err} }
func (c failedConn) Write([]byte) (int, error) { return 0, connectError{c.err} }

// helloConn answers the HELLO with which go-redis begins each connection, as an old Redis does. go-redis then sends
// AUTH where there is a password. twemproxy closes a connection that sends HELLO. As with go-redis, what was written
// is answered before more is written, and one goroutine at a time uses it.
type helloConn struct {
	net.Conn

	begun  bool   // something else was written
	answer []byte // to be read
}

// Write implements net.Conn.
func (c *helloConn) Write(p []byte) (int, error) {
	if !c.begun && isHello(p) {
		c.answer = []byte("-ERR unknown command 'HELLO'\r\n")
		return len(p), nil
	}
	c.begun = true
	return c.Conn.Write(p)
}

// Read implements net.Conn.
func (c *helloConn) Read(p []byte) (int, error) {
	if len(c.answer) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.answer)
	c.answer = c.answer[n:]
	return n, nil
}

// isHello reports whether a command is HELLO: *2, $5 and hello, each in a line.
func isHello(p []byte) bool {
	lines := bytes.SplitN(p, []byte("\r\n"), 4)
	return len(lines) == 4 && bytes.EqualFold(lines[2], []byte("hello"))
}

// readTimeout is how long the certificates of a connection may take to be read, before the last ones serve.
const readTimeout = 250 * time.Millisecond

// tlsFiles are the certificates of connections with TLS. They are read for each connection, so that they can be
// renewed. While they cannot be read, for instance because only one of the two has been written, the last ones serve.
type tlsFiles struct {
	ca, cert, key string // paths; empty for the system's authorities, and for no certificate of our own
	serverName    string // empty: the host's
	skipHostname  bool   // the chain is verified, and not that the certificate has the server's name
	last          atomic.Pointer[tls.Config]
}

// dial connects and shakes hands.
func (f *tlsFiles) dial(ctx context.Context, dialer *net.Dialer, network, addr string) (net.Conn, error) {
	short, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	config, err := f.config(short)
	if err != nil {
		if config = f.last.Load(); config == nil {
			return nil, err
		}
	}
	return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, addr)
}

func (f *tlsFiles) config(ctx context.Context) (*tls.Config, error) {
	config, err := fileread.ClientTLS(ctx, "tls_", f.ca, f.cert, f.key)
	if err != nil {
		return nil, err
	}
	config.ServerName = f.serverName
	if f.skipHostname {
		verifyChainOnly(config)
	}
	f.last.Store(config)
	return config, nil
}

// verifyChainOnly has a connection accept each certificate of the authorities, whatever name it has.
func verifyChainOnly(config *tls.Config) {
	config.InsecureSkipVerify = true // VerifyConnection verifies the chain
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("the server has shown no certificate")
		}
		o := x509.VerifyOptions{Roots: config.RootCAs, Intermediates: x509.NewCertPool()}
		for _, c := range state.PeerCertificates[1:] {
			o.Intermediates.AddCert(c)
		}
		_, err := state.PeerCertificates[0].Verify(o)
		return err
	}
}
