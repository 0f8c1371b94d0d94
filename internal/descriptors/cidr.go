package descriptors

import (
	"net/netip"
	"strings"
)

// block returns the pattern of the longest block that holds the value, nil if none does or it is no address.
func (m *matchers) block(value string) *Pattern {
	if m.blocks == nil {
		return nil
	}
	addr, ok := address(value)
	if !ok {
		return nil
	}
	p, _ := m.blocks.Lookup(addr)
	return p
}

// address reads an IP address as `cidr` does: an IPv4 address that is written as IPv6 is an IPv4 address, and a zone
// does not count. It allocates nothing, but for what looks like an address and is none.
func address(value string) (addr netip.Addr, ok bool) {
	if !maybeAddr(value) {
		return netip.Addr{}, false
	}
	text, _, zoned := strings.Cut(value, "%")
	addr, err := netip.ParseAddr(text)
	if err != nil || zoned && addr.Is4() {
		return netip.Addr{}, false
	}
	return addr.Unmap(), true
}

// maybeAddr keeps most of what is no address away from the parser, whose errors allocate.
func maybeAddr(value string) bool {
	const longest = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255")
	for i := range len(value) {
		switch c := value[i]; {
		case c == '%':
			return i > 0
		case i == longest || c != '.' && c != ':' && (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F'):
			return false
		}
	}
	return len(value) >= len("::")
}
