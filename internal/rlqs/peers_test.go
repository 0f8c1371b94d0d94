package rlqs

import (
	"net"
	"testing"
)

// Streams that are all taken are given from who has the most to who has fewer.
func TestPeers(t *testing.T) {
	addr := func(host string, port int) net.Addr { return &net.TCPAddr{IP: net.ParseIP(host), Port: port} }
	isLost := func(of *seat) bool {
		select {
		case <-of.lost:
			return true
		default:
			return false
		}
	}
	for name, tt := range map[string]struct {
		open     []net.Addr
		from     net.Addr
		refused  bool
		lostFrom net.Addr
	}{
		"of the host that has the most": {
			[]net.Addr{addr("1.1.1.1", 1), addr("2.2.2.2", 1), addr("2.2.2.2", 2), addr("1.1.1.1", 1), addr("1.1.1.1", 1)},
			addr("3.3.3.3", 1), false, addr("1.1.1.1", 1),
		},
		"there of the connection that has the most": {
			[]net.Addr{addr("1.1.1.1", 1), addr("1.1.1.1", 2), addr("1.1.1.1", 2)}, addr("::1", 1), false, addr("1.1.1.1", 2),
		},
		"of another connection of the host": {
			[]net.Addr{addr("1.1.1.1", 1), addr("1.1.1.1", 1)}, addr("1.1.1.1", 2), false, addr("1.1.1.1", 1),
		},
		"of one's own host, where another one has as many": {
			[]net.Addr{addr("1.1.1.1", 1), addr("2.2.2.2", 1), addr("2.2.2.2", 1), addr("1.1.1.1", 2)},
			addr("2.2.2.2", 2), false, addr("2.2.2.2", 1),
		},
		"none of a peer that would have fewer then": {
			[]net.Addr{addr("1.1.1.1", 1), addr("2.2.2.2", 1)}, addr("3.3.3.3", 1), true, nil,
		},
		"none of one's own connection": {
			[]net.Addr{addr("1.1.1.1", 1), addr("1.1.1.1", 1), addr("1.1.1.1", 1)}, addr("1.1.1.1", 1), true, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeers(len(tt.open))
			var all []*seat
			for _, a := range tt.open {
				all = append(all, p.enter(a))
			}
			next := p.enter(tt.from)
			if (next == nil) != tt.refused {
				t.Errorf("refused is %t", next == nil)
			}
			lost := 0
			for i, one := range all {
				if isLost(one) {
					lost++
					if tt.open[i].String() != tt.lostFrom.String() {
						t.Errorf("%s lost a stream, want %s", tt.open[i], tt.lostFrom)
					}
				}
				p.leave(one)
			}
			if want := map[bool]int{true: 0, false: 1}[tt.refused]; lost != want {
				t.Errorf("%d streams are lost, want %d", lost, want)
			}
			if next != nil {
				p.leave(next)
			}
			if p.count()+len(p.hosts)+len(p.conns) != 0 {
				t.Errorf("of streams that ended is left: %+v", p)
			}
		})
	}
}
