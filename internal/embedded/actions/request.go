package actions

import "net/netip"

// Request is what a Plan reads of an HTTP request. A Phase calls it only during Descriptors, and keeps
// nothing that it returns: values may be views of memory that lives no longer than the call.
type Request interface {
	// Header returns the n-th value, from 0, of the request header with this name, and false if there are fewer. The name
	// is in lower case and one of Phase.Headers. Pseudo headers have their colon: ":path" and, for the Host header,
	// ":authority".
	Header(name string, n int) (value []byte, ok bool)
	// RemoteAddress returns the client's address as Envoy trusts it: with use_remote_address and xff_num_trusted_hops
	// applied. It is the zero Addr if the client has no IP address.
	RemoteAddress() netip.Addr
	// SourceCluster returns the name that Envoy's own node has as a cluster: --service-cluster, or node.cluster.
	SourceCluster() string
	// DestinationCluster returns the name of the cluster that the request's route leads to, and false if no route does.
	DestinationCluster() (name []byte, ok bool)
	// ResponseHeader returns the first value of the response header with this name, and false if the response has none
	// or there is no response yet. The name is in lower case and one of Phase.ResponseHeaders.
	ResponseHeader(name string) (value []byte, ok bool)
	// Metadata returns the value below a key, one of Phase.Metadata: the same pointer.
	Metadata(key *MetadataKey) MetadataValue
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
	Namespace string   // such as "envoy.filters.http.jwt_authn"
	Path      []string // the keys below it, from the outermost; never empty
	// MayBeNumber reports whether a number is a value, too. Without it, only text is.
	MayBeNumber bool
}

// MetadataValue is a value of metadata. Text and Number are set for their kind alone.
type MetadataValue struct {
	Kind   MetadataKind
	Text   []byte
	Number float64
}

// MetadataKind is the type of a MetadataValue.
type MetadataKind uint8

const (
	// MetadataAbsent is no value, or one of any other type: a list, a struct, a boolean or null.
	MetadataAbsent MetadataKind = iota
	// MetadataText is a string.
	MetadataText
	// MetadataNumber is a number.
	MetadataNumber
)
