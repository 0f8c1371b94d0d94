package embedded

import (
	"net/netip"

	"github.com/weir-ratelimit/weir/internal/embedded/actions"
)

// Input is what the plan reads of a request. Its values are valid until Decide returns.
type Input struct {
	headers        []headerValue
	response       []headerValue // headers
	metadata       []metadataValue
	remote         netip.Addr
	sourceCluster  string
	destination    []byte
	hasDestination bool
}

type headerValue struct {
	name  string
	value []byte
}

type metadataValue struct {
	key   *actions.MetadataKey
	value actions.MetadataValue
}

var _ actions.Request = (*Input)(nil)

// AddHeader adds a value of a header, one of Phase.Headers. Several values of one header come in their order.
func (in *Input) AddHeader(name string, value []byte) {
	in.headers = append(in.headers, headerValue{name, value})
}

// AddResponseHeader adds a value of a header of the response, one of Phase.ResponseHeaders.
func (in *Input) AddResponseHeader(name string, value []byte) {
	in.response = append(in.response, headerValue{name, value})
}

// AddMetadata adds the value of a key, one of Phase.Metadata.
func (in *Input) AddMetadata(key *actions.MetadataKey, value actions.MetadataValue) {
	in.metadata = append(in.metadata, metadataValue{key, value})
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
func (in *Input) Header(name string, n int) (value []byte, ok bool) { return find(in.headers, name, n) }

// ResponseHeader implements actions.Request.
func (in *Input) ResponseHeader(name string) (value []byte, ok bool) {
	return find(in.response, name, 0)
}

// find returns the n-th value of the header.
func find(headers []headerValue, name string, n int) (value []byte, ok bool) {
	for i := range headers {
		if h := &headers[i]; h.name == name {
			if n == 0 {
				return h.value, true
			}
			n--
		}
	}
	return nil, false
}

// Metadata implements actions.Request.
func (in *Input) Metadata(key *actions.MetadataKey) actions.MetadataValue {
	for i := range in.metadata {
		if m := &in.metadata[i]; m.key == key {
			return m.value
		}
	}
	return actions.MetadataValue{}
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
	clear(in.response)
	clear(in.metadata)
	*in = Input{headers: in.headers[:0], response: in.response[:0], metadata: in.metadata[:0]}
}
