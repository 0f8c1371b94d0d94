package actions

import (
	"fmt"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
)

// readMetadata notes that the phase reads a key, and returns the one that the values of a Request have.
func (p *Phase) readMetadata(key MetadataKey) *MetadataKey {
	for _, known := range p.Metadata {
		if known.Source == key.Source && known.Namespace == key.Namespace && slices.Equal(known.Path, key.Path) {
			known.MayBeNumber = known.MayBeNumber || key.MayBeNumber
			return known
		}
	}
	p.Metadata = append(p.Metadata, &key)
	return &key
}

// metadataKey is the key with these further names below it.
func (p *Phase) metadataKey(
	at string, from MetadataSource, k *metadatav3.MetadataKey, below ...string,
) (*MetadataKey, error) {
	key := MetadataKey{Source: from, Namespace: k.GetKey()}
	for i, segment := range k.GetPath() {
		if _, isIndex := segment.GetSegment().(*metadatav3.MetadataKey_PathSegment_Index); isIndex {
			return nil, refuse(fmt.Sprintf("%s.metadata_key.path[%d].index", at, i), "an element of a list",
				"Weir reads values by their keys alone")
		}
		key.Path = append(key.Path, segment.GetKey())
	}
	key.Path = append(key.Path, below...)
	return p.readMetadata(key), nil
}

// metadataText is text of metadata.
type metadataText struct {
	key          *MetadataKey
	orElse       string
	skipIfAbsent bool
}

func (p *Phase) metadataAction(at string, m *routev3.RateLimit_Action_MetaData) (action, error) {
	source := DynamicMetadata
	if m.GetSource() == routev3.RateLimit_Action_MetaData_ROUTE_ENTRY {
		source = RouteMetadata
	}
	key, err := p.metadataKey(at, source, m.GetMetadataKey())
	return action{m.GetDescriptorKey(), metadataText{key, m.GetDefaultValue(), m.GetSkipIfAbsent()}.value}, err
}

// Empty text counts as absent, and so does a number.
func (m metadataText) value(req *Request) (string, found) {
	switch value := req.valueOf(m.key).Text; {
	case len(value) > 0:
		return text(value), yes
	case m.orElse != "":
		return m.orElse, yes
	}
	return "", absent(m.skipIfAbsent)
}
