package descriptors

import (
	"net/netip"
	"strings"
)

// block returns the pattern of the longest block that contains the value, or nil.
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

// address parses an IP address for `cidr`: an IPv4 address that is written as IPv6 becomes IPv4, and a zone is ignored.
// It allocates only if value looks like an address but is invalid.
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

// maybeAddr rejects most values that are not addresses without the parser, whose errors allocate.
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
