package actions

import "net/netip"

// Request has the parts of an HTTP request that a Plan reads. Its values may refer to memory that is valid only until
// Descriptors returns.
type Request struct {
	// SourceCluster is the cluster name of Envoy's own node: --service-cluster, or node.cluster.
	SourceCluster string

	headers        []header
	response       []header
	metadata       []metadataValue
	remote         netip.Addr
	destination    []byte
	hasDestination bool
}

type header struct {
	name  string
	value []byte
}

type metadataValue struct {
	key   *MetadataKey
	value MetadataValue
}

// AddHeader adds a value of a header in Phase.Headers. Add several values of one header in their order. Pseudo headers
// have a colon: ":path" and, for the Host header, ":authority".
func (r *Request) AddHeader(name string, value []byte) {
	r.headers = append(r.headers, header{name, value})
}

// AddResponseHeader adds a value of a response header in Phase.ResponseHeaders.
func (r *Request) AddResponseHeader(name string, value []byte) {
	r.response = append(r.response, header{name, value})
}

// AddMetadata adds the value of a key in Phase.Metadata.
func (r *Request) AddMetadata(key *MetadataKey, value MetadataValue) {
	r.metadata = append(r.metadata, metadataValue{key, value})
}

// SetRemote sets the client's address from Envoy's attribute source.address, with port. It ignores any other text.
func (r *Request) SetRemote(address string) {
	if addr, err := netip.ParseAddrPort(address); err == nil {
		r.remote = addr.Addr()
	}
}

// SetDestinationCluster sets the name of the cluster to which the request is routed.
func (r *Request) SetDestinationCluster(name []byte) { r.destination, r.hasDestination = name, true }

// Reset empties the request, but not its memory.
func (r *Request) Reset() {
	clear(r.headers)
	clear(r.response)
	clear(r.metadata)
	*r = Request{headers: r.headers[:0], response: r.response[:0], metadata: r.metadata[:0]}
}

// header returns value n, from 0, of a request header.
func (r *Request) header(name string, n int) (value []byte, ok bool) { return find(r.headers, name, n) }

// find returns value n of a header.
func find(headers []header, name string, n int) (value []byte, ok bool) {
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

// valueOf returns the value of a key.
func (r *Request) valueOf(key *MetadataKey) MetadataValue {
	for i := range r.metadata {
		if m := &r.metadata[i]; m.key == key {
			return m.value
		}
	}
	return MetadataValue{}
}

// MetadataSource is the source of metadata.
type MetadataSource uint8

const (
	// DynamicMetadata is the metadata that filters have set on the request.
	DynamicMetadata MetadataSource = iota
	// RouteMetadata is the metadata of the request's route.
	RouteMetadata
)

// MetadataKey identifies a value in the metadata of a request.
type MetadataKey struct {
	Source    MetadataSource
	Namespace string // such as "envoy.filters.http.jwt_authn"
	Key       string // directly below Namespace, because Envoy gives modules no other values
	// MayBeNumber reports whether the value may be a number; otherwise only text counts.
	MayBeNumber bool
}

// MetadataValue is a text or a number of metadata. The zero value is an absent value, or a value of another type.
type MetadataValue struct {
	Text     []byte // nil if the value is not text
	Number   float64
	IsNumber bool
}
