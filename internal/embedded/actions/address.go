package actions

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// remoteAddress returns the client's address.
func remoteAddress(req *Request) (string, found) {
	if addr := req.remote; addr.IsValid() {
		var b [48]byte
		return string(appendAddr(b[:0], addr)), yes
	}
	return "", no
}

// maskedRemoteAddress returns the client's network.
func (p *Phase) maskedRemoteAddress(m *routev3.RateLimit_Action_MaskedRemoteAddress) action {
	p.RemoteAddress = true
	v4, v6 := 32, 128 // lengths of prefixes, in bits
	if given := m.GetV4PrefixMaskLen(); given != nil {
		v4 = int(given.GetValue())
	}
	if given := m.GetV6PrefixMaskLen(); given != nil {
		v6 = int(given.GetValue())
	}
	return action{"masked_remote_address", func(req *Request) (string, found) {
		addr, bits := req.remote, v6 // Prefix drops the zone
		if addr.Is4() {
			bits = v4
		}
		prefix, err := addr.Prefix(bits)
		if !addr.IsValid() || err != nil {
			return "", no
		}
		var b [48]byte
		text := append(appendAddr(b[:0], prefix.Addr()), '/')
		return string(strconv.AppendInt(text, int64(bits), 10)), yes
	}}
}

// appendAddr appends the address in the form of C's inet_ntop, which Envoy uses. It differs from netip for ::a.b.c.d,
// whose last 32 bits inet_ntop writes as IPv4.
func appendAddr(b []byte, addr netip.Addr) []byte {
	addr = addr.WithZone("")
	if addr.Is6() {
		all := addr.As16()
		if high, low := binary.BigEndian.Uint64(all[:8]), all[8:]; high == 0 && [4]byte(low[:4]) == [4]byte{} &&
			[2]byte(low[4:6]) != [2]byte{} {
			return netip.AddrFrom4([4]byte(low[4:])).AppendTo(append(b, "::"...))
		}
	}
	return addr.AppendTo(b)
}
