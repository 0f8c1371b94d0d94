package actions

import "net/netip"

// Request is what a Plan reads of an HTTP request. Its values may be views of memory that lives no longer than the call
// of Descriptors.
type Request struct {
	// SourceCluster is the name that Envoy's own node has as a cluster: --service-cluster, or node.cluster.
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

// AddHeader adds a value of a header, one of Phase.Headers. Several values of one header come in their order. Pseudo
// headers have their colon: ":path" and, for the Host header, ":authority".
func (r *Request) AddHeader(name string, value []byte) {
	r.headers = append(r.headers, header{name, value})
}

// AddResponseHeader adds a value of a header of the response, one of Phase.ResponseHeaders.
func (r *Request) AddResponseHeader(name string, value []byte) {
	r.response = append(r.response, header{name, value})
}

// AddMetadata adds the value of a key, one of Phase.Metadata.
func (r *Request) AddMetadata(key *MetadataKey, value MetadataValue) {
	r.metadata = append(r.metadata, metadataValue{key, value})
}

// SetRemote sets the client's address as Envoy trusts it, with its port, as in Envoy's attribute source.address. What
// is no such address is none.
func (r *Request) SetRemote(address string) {
	if addr, err := netip.ParseAddrPort(address); err == nil {
		r.remote = addr.Addr()
	}
}

// SetDestinationCluster sets the name of the cluster that the request's route leads to.
func (r *Request) SetDestinationCluster(name []byte) { r.destination, r.hasDestination = name, true }

// Reset forgets the request, and keeps its memory.
func (r *Request) Reset() {
	clear(r.headers)
	clear(r.response)
	clear(r.metadata)
	*r = Request{headers: r.headers[:0], response: r.response[:0], metadata: r.metadata[:0]}
}

// header returns the n-th value, from 0, of a request header.
func (r *Request) header(name string, n int) (value []byte, ok bool) { return find(r.headers, name, n) }

// find returns the n-th value of the header.
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

// valueOf returns the value below a key.
func (r *Request) valueOf(key *MetadataKey) MetadataValue {
	for i := range r.metadata {
		if m := &r.metadata[i]; m.key == key {
			return m.value
		}
	}
	return MetadataValue{}
}

// MetadataSource is where metadata comes from.
type MetadataSource uint8

const (
	// DynamicMetadata is what filters have set on the request.
	DynamicMetadata MetadataSource = iota
	// RouteMetadata is the metadata of the request's route.
	RouteMetadata
)

// MetadataKey names a value in the metadata of a request.
type MetadataKey struct {
	Source    MetadataSource
	Namespace string // such as "envoy.filters.http.jwt_authn"
	Key       string // directly below it: Envoy shows a module no other values
	// MayBeNumber reports whether a number is a value, too. Without it, only text is.
	MayBeNumber bool
}

// MetadataValue is text or a number of metadata. The zero value is that of an absent one, and of any other type.
type MetadataValue struct {
	Text     []byte // not nil if it is text
	Number   float64
	IsNumber bool
}
