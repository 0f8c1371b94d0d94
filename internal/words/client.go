package words

import (
	"net"
	"net/netip"
)

// Client names the client at an address, by which bounds on clients count: the address without its port, or the /64 of
// an IPv6 address, since whoever has one of these addresses has all of them.
func Client(addr net.Addr) string {
	from, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return addr.Network() // clients of a Unix socket have no names
	}
	ip := from.Addr().Unmap()
	if network, err := ip.WithZone("").Prefix(64); err == nil && ip.Is6() && !ip.IsLinkLocalUnicast() && !ip.IsLoopback() {
		return network.String()
	}
	return ip.String()
}
