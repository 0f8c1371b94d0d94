package conns

import (
	"log/slog"
	"math"
	"net"
	"strconv"
	"testing"
)

// A host that keeps all connections busy does not keep others out, and one that opens connections all the time does not
// close the new ones of others.
func TestBusyHostMakesRoom(t *testing.T) {
	const most = 20
	g := New(Options{Name: "http", Max: most, Budget: NewBudget(1), Log: slog.New(slog.DiscardHandler)})
	connect := func(host string, busy bool) (*Conn, bool) {
		c := &Conn{Conn: nothing{}, g: g, host: host}
		c.busy.Store(busy)
		return c, g.admit(c)
	}
	for range most {
		if _, ok := connect("greedy", true); !ok {
			t.Fatal("a connection was refused before the table is full")
		}
	}
	if _, ok := connect("greedy", true); ok {
		t.Error("a busy connection was closed for another one of its host")
	}
	probe, ok := connect("probe", false)
	if !ok {
		t.Fatal("a host with busy connections keeps others out")
	}
	for range 3 * most {
		if _, ok := connect("greedy", false); ok {
			t.Fatal("a connection was closed for a host with more of them")
		}
	}
	if _, ok := g.conns[probe]; !ok || g.hosts["greedy"] != most-1 {
		t.Errorf("the new connection is open: %t; the others: %d", ok, g.hosts["greedy"])
	}
	for range most {
		_, _ = connect("second", true)
	}
	if first, second := g.hosts["greedy"], g.hosts["second"]; first < most/2 || second < most/4 {
		t.Errorf("busy hosts share the connections as %d and %d", first, second)
	}
}

// A new connection looks at a part of a full table, so it does not always find the one connection that may be closed.
func TestLooksAreBounded(t *testing.T) {
	g := New(Options{Name: "http", Max: 16 * maxLooked, Budget: NewBudget(1), Log: slog.New(slog.DiscardHandler)})
	for i := range g.o.Max {
		c := &Conn{Conn: nothing{}, g: g, host: strconv.Itoa(i)}
		c.busy.Store(i > 0)
		c.used.Store(math.MaxInt64)
		g.conns[c], g.hosts[c.host] = struct{}{}, 1
	}
	g.hosts["0"] = 2
	for range 100 { // each one finds it with a probability of 1/16
		if g.idlest("0") == nil {
			return
		}
	}
	t.Error("a new connection looks at the whole table")
}

// nothing is a connection that can only be closed.
type nothing struct{ net.Conn }

func (nothing) Close() error { return nil }

// from is a connection of an address.
type from struct {
	nothing
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

// accepts is a listener of given connections.
type accepts struct {
	net.Listener
	conns []net.Conn
}

func (a *accepts) Accept() (c net.Conn, err error) {
	if len(a.conns) == 0 {
		return nil, net.ErrClosed
	}
	c, a.conns = a.conns[0], a.conns[1:]
	return c, nil
}

// Addresses of one IPv6 network are one client: together they do not keep others out.
func TestANetworkIsOneClient(t *testing.T) {
	const most = 20
	g := New(Options{Name: "http", Max: most, Budget: NewBudget(1), Log: slog.New(slog.DiscardHandler)})
	all := &accepts{}
	for i := range most {
		all.conns = append(all.conns, from{addr: &net.TCPAddr{IP: net.ParseIP("2001:db8:1:2::" + strconv.Itoa(i+1)), Port: 1}})
	}
	all.conns = append(all.conns, from{addr: &net.TCPAddr{IP: net.ParseIP("192.0.2.7"), Port: 1}})
	l := g.Listen(all, false)
	for range most + 1 {
		c, err := l.Accept()
		if err != nil {
			t.Fatalf("a client with one connection is kept out by one with %d: %v", most, err)
		}
		if c, ok := c.(*Conn); ok {
			c.busy.Store(true)
		}
	}
	if g.hosts["2001:db8:1:2::/64"] != most-1 || g.hosts["192.0.2.7"] != 1 {
		t.Errorf("connections by client: %v", g.hosts)
	}
}
