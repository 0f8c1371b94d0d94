package embedded

import (
	"net/netip"

	"github.com/weir-ratelimit/weir/internal/actions"
)

// Input is what the plan reads of a request. Its values are valid until Decide returns.
type Input struct {
	actions.NoMetadata

	headers        []headerValue
	remote         netip.Addr
	sourceCluster  string
	destination    []byte
	hasDestination bool
}

type headerValue struct {
	name  string
	value []byte
}

var _ actions.Request = (*Input)(nil)

// AddHeader adds a value of a header, one of Plan.Headers. Several values of one header come in their order.
func (in *Input) AddHeader(name string, value []byte) {
	in.headers = append(in.headers, headerValue{name, value})
}

// SetRemote sets the client's address, as Envoy's attribute source.address has it: with its port. What is no such
// address is none.
func (in *Input) SetRemote(address string) {
	if addr, err := netip.ParseAddrPort(address); err == nil {
		in.remote = addr.Addr()
	}
}

// SetDestinationCluster sets the name of the cluster that the request goes to.
func (in *Input) SetDestinationCluster(name []byte) { in.destination, in.hasDestination = name, true }

// Header implements actions.Request.
func (in *Input) Header(name string, n int) (value []byte, ok bool) {
	for i := range in.headers {
		if h := &in.headers[i]; h.name == name {
			if n == 0 {
				return h.value, true
			}
			n--
		}
	}
	return nil, false
}

// RemoteAddress implements actions.Request.
func (in *Input) RemoteAddress() netip.Addr { return in.remote }

// SourceCluster implements actions.Request.
func (in *Input) SourceCluster() string { return in.sourceCluster }

// DestinationCluster implements actions.Request.
func (in *Input) DestinationCluster() (name []byte, ok bool) {
	return in.destination, in.hasDestination
}

// forget forgets the request, and keeps the memory.
func (in *Input) forget() {
	clear(in.headers)
	*in = Input{headers: in.headers[:0]}
}
