//go:build e2e

package e2e

import (
	_ "embed"
	bin "encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// networkFaults are faults between the processes and the server.
func networkFaults() []fault {
	behaves := func(m manner) func(*rig) func() {
		return func(r *rig) func() {
			r.proxy.set(m)
			return func() { r.proxy.set(manner{}) }
		}
	}
	return []fault{
		{"replies 2 ms late", all, behaves(manner{delay: stretched(2 * time.Millisecond)})},
		{"replies 10 ms late", all, behaves(manner{delay: stretched(10 * time.Millisecond)})}, // a new connection has time for one
		{"replies 30 ms late", all, behaves(manner{delay: stretched(30 * time.Millisecond)})},
		{"everything dropped", all, behaves(manner{drop: 1})},
		{"one reply in 20 dropped", all, behaves(manner{drop: 20})},
		{"connections half-closed", all, behaves(manner{halfClose: true})},
		{"connections reset", all, behaves(manner{reset: true})},
		{"connections reset once", all, func(r *rig) func() {
			r.proxy.set(manner{reset: true})
			r.proxy.set(manner{})
			return func() {}
		}},
		{"connections refused", all, func(r *rig) func() {
			r.proxy.refuse()
			return r.proxy.listen
		}},
	}
}

// manner is how a proxy fails. The zero value does not.
type manner struct {
	delay     time.Duration // of every reply
	drop      int           // one in so many replies
	halfClose bool          // the server's side of every connection ends
	reset     bool          // every connection, and every new one
}

// faultyProxy passes TCP on, and fails as its manner says.
type faultyProxy struct {
	t        *testing.T
	addr, to string

	mu       sync.Mutex
	listener net.Listener
	manner   manner
	replies  int
	conns    map[*net.TCPConn]bool // of clients
	wg       sync.WaitGroup
}

func startFaultyProxy(t *testing.T, to string) *faultyProxy {
	t.Helper()
	p := &faultyProxy{t: t, addr: proctest.FreeAddr(t), to: to, conns: map[*net.TCPConn]bool{}}
	p.listen()
	t.Cleanup(func() {
		p.refuse()
		p.wg.Wait()
	})
	return p
}

// listen takes connections until refuse.
func (p *faultyProxy) listen() {
	p.t.Helper()
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.listener, p.manner = listener, manner{}
	p.mu.Unlock()
	p.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			client, ok := conn.(*net.TCPConn)
			if !ok {
				p.t.Errorf("accepted a %T", conn)
				return
			}
			p.wg.Go(func() { p.serve(client) })
		}
	})
}

// refuse closes the port and all connections.
func (p *faultyProxy) refuse() {
	p.mu.Lock()
	_ = p.listener.Close()
	p.mu.Unlock()
	p.set(manner{reset: true})
}

// set changes the manner, also of the connections that there are.
func (p *faultyProxy) set(m manner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.manner = m
	for conn := range p.conns {
		p.end(conn)
	}
}

// end ends the connection, or half of it, if that is the manner.
func (p *faultyProxy) end(conn *net.TCPConn) {
	switch {
	case p.manner.reset:
		_ = conn.SetLinger(0)
		_ = conn.Close()
	case p.manner.halfClose:
		_ = conn.CloseWrite()
	}
}

func (p *faultyProxy) serve(client *net.TCPConn) {
	defer client.Close() //nolint:errcheck // a test's connection
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer server.Close() //nolint:errcheck // a test's connection
	p.mu.Lock()
	p.conns[client] = true
	p.end(client)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, client)
	}()
	p.wg.Go(func() {
		defer server.Close() //nolint:errcheck // ends the other direction
		p.pass(client, server, false)
	})
	p.pass(server, client, true)
}

// pass copies until one side ends.
func (p *faultyProxy) pass(from, to net.Conn, replies bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if replies && p.dropped() {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// dropped delays a reply, and says whether it is to be dropped.
func (p *faultyProxy) dropped() bool {
	p.mu.Lock()
	m := p.manner
	p.replies++
	n := p.replies
	p.mu.Unlock()
	if m.delay > 0 {
		<-time.After(m.delay)
	}
	return m.drop > 0 && n%m.drop == 0
}

// clockShim moves a program's clock by the seconds that a file holds.
//
//go:embed testdata/clock.c
var clockShim string

// steppedClock is the clock of programs that are started while it is in the environment.
type steppedClock struct {
	t    *testing.T
	file *os.File
	off  time.Duration
}

// newSteppedClock puts the clock in the environment.
func newSteppedClock(t *testing.T) *steppedClock {
	t.Helper()
	dir := t.TempDir()
	source, shim := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, []byte(clockShim), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", shim, source).CombinedOutput(); err != nil {
		t.Fatalf("cc, which scripts/tools.sh installs: %v\n%s", err, out)
	}
	file, err := os.Create(filepath.Join(dir, "offset"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	c := &steppedClock{t: t, file: file}
	c.step(0)
	t.Setenv("WEIR_TEST_CLOCK", file.Name())
	t.Setenv("LD_PRELOAD", shim)
	return c
}

// notFor takes it out of the environment: programs that are started from now on have the machine's clock.
func (c *steppedClock) notFor(t *testing.T) {
	t.Helper()
	t.Setenv("LD_PRELOAD", "")
}

// step moves the clock.
func (c *steppedClock) step(by time.Duration) {
	c.t.Helper()
	c.off += by
	if _, err := c.file.WriteAt(bin.LittleEndian.AppendUint64(nil, uint64(int64(c.off/time.Second))), 0); err != nil {
		c.t.Fatal(err)
	}
}
