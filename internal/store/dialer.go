package store

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-ratelimit/weir/internal/fileread"
)

type dialer struct {
	net.Dialer
	tls   *tlsFiles // nil without TLS
	proxy bool      // the server is a proxy
	// answer is the timeout for a response from when its command was written; 0 leaves the timeout to go-redis.
	answer time.Duration
	// credentials may change; nil if they do not.
	credentials *credentials
}

// dial is go-redis's Options.Dialer. If dialing fails, reads and writes of the connection return the error, not dial:
// after PoolSize failed dials go-redis would dial only once a second, and would notice a recovery late.
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
	if d.credentials != nil {
		conn = &authConn{Conn: conn, from: d.credentials, used: d.credentials.current.Load()}
	}
	if d.proxy {
		conn = &helloConn{Conn: conn}
	}
	if hasSocket {
		conn = socketConn{conn, socket}
	}
	return conn, nil
}

// lastLook is the extra time for reading a response that may have arrived while this process was not running.
const lastLook = time.Millisecond

// fairConn avoids timeouts that are the fault of this process. The deadlines of go-redis count from the start of a
// call; fairConn moves them to at least `answer` after the command was written, and reads once more at the deadline.
type fairConn struct {
	net.Conn

	answer time.Duration
}

func (c *fairConn) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(c.fair(t)) }

// SetReadDeadline implements net.Conn. go-redis calls it when it has written a command.
func (c *fairConn) SetReadDeadline(t time.Time) error { return c.Conn.SetReadDeadline(c.fair(t)) }

func (c *fairConn) fair(t time.Time) time.Time {
	if fair := time.Now().Add(c.answer); c.answer > 0 && !t.IsZero() && fair.After(t) {
		return fair
	}
	return t
}

func (c *fairConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !errors.Is(err, os.ErrDeadlineExceeded) || c.Conn.SetReadDeadline(time.Now().Add(lastLook)) != nil {
		return n, err
	}
	return c.Conn.Read(p)
}

// socketConn is a connection with access to its socket, which go-redis checks to find closed connections.
type socketConn struct {
	net.Conn
	socket syscall.Conn
}

// SyscallConn implements syscall.Conn.
func (c socketConn) SyscallConn() (syscall.RawConn, error) { return c.socket.SyscallConn() }

// connectError is the error of a failed dial.
type connectError struct{ error }

// Unwrap returns a list, because go-redis would replace connectError by the result of errors.Unwrap.
func (e connectError) Unwrap() []error { return []error{e.error} }

// failedConn is the connection that dial returns if dialing failed.
type failedConn struct {
	net.Conn // pipe without a reader

	err error
}

func (c failedConn) Read([]byte) (int, error)  { return 0, connectError{c.err} }
func (c failedConn) Write([]byte) (int, error) { return 0, connectError{c.err} }

// helloConn answers the HELLO that go-redis sends first, as an old Redis does, because twemproxy closes a connection
// that sends HELLO. go-redis then sends AUTH if there is a password. helloConn relies on go-redis to read each response
// before it writes again, and to use a connection from one goroutine at a time.
type helloConn struct {
	net.Conn

	begun  bool   // another command was written
	answer []byte // response to HELLO that is not read yet
}

func (c *helloConn) Write(p []byte) (int, error) {
	if !c.begun && commandName(p) == "hello" {
		c.answer = []byte("-ERR unknown command 'HELLO'\r\n")
		return len(p), nil
	}
	c.begun = true
	return c.Conn.Write(p)
}

func (c *helloConn) Read(p []byte) (int, error) {
	if len(c.answer) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.answer)
	c.answer = c.answer[n:]
	return n, nil
}

// commandName returns the name of the first command in p in lower case. Its lines are *2, $5 and the name.
func commandName(p []byte) string {
	lines := bytes.SplitN(p, []byte("\r\n"), 4)
	if len(lines) < 4 {
		return ""
	}
	return strings.ToLower(string(lines[2]))
}

// readTimeout bounds the reading of certificates for a connection. After it, the last certificates are used.
const readTimeout = 250 * time.Millisecond

// tlsFiles has the certificate files for TLS. Each new connection reads them, so that they can be renewed. If they
// cannot be read, for instance because only one of two was replaced so far, the last certificates are used.
type tlsFiles struct {
	ca, cert, key string // paths; empty: system's authorities, no client certificate
	serverName    string // empty: name of the host
	skipHostname  bool   // verifies the chain, but not the name in the certificate
	last          atomic.Pointer[tls.Config]
}

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

// verifyChainOnly makes config accept each certificate of the authorities, with any name.
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
