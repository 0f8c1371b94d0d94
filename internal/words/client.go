package words

import (
	"net"
	"net/netip"
)

// Client returns the name under which the bounds on clients count an address: the address without the port. It returns
// the /64 network of an IPv6 address, because a client usually has all addresses of its network.
func Client(addr net.Addr) string {
	from, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return addr.Network() // the addresses of a Unix socket do not identify clients
	}
	ip := from.Addr().Unmap()
	if network, err := ip.WithZone("").Prefix(64); err == nil && ip.Is6() && !ip.IsLinkLocalUnicast() && !ip.IsLoopback() {
		return network.String()
	}
	return ip.String()
}
