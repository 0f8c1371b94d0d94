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
