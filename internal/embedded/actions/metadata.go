package actions

import (
	"fmt"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
)

// readMetadata records that the phase reads a key, and returns the key's pointer in Phase.Metadata.
func (p *Phase) readMetadata(key MetadataKey) *MetadataKey {
	for _, known := range p.Metadata {
		if known.Source == key.Source && known.Namespace == key.Namespace && known.Key == key.Key {
			known.MayBeNumber = known.MayBeNumber || key.MayBeNumber
			return known
		}
	}
	p.Metadata = append(p.Metadata, &key)
	return &key
}

// metadataKey returns a path that consists of one key.
func metadataKey(at string, from MetadataSource, k *metadatav3.MetadataKey) (MetadataKey, error) {
	var path []string
	for i, segment := range k.GetPath() {
		if _, isIndex := segment.GetSegment().(*metadatav3.MetadataKey_PathSegment_Index); isIndex {
			return MetadataKey{}, refuse(fmt.Sprintf("%s.metadata_key.path[%d].index", at, i), "an element of a list",
				"Weir reads values by their keys alone")
		}
		path = append(path, segment.GetKey())
	}
	command := "DYNAMIC_METADATA(" + k.GetKey()
	if from == RouteMetadata {
		command = "METADATA(ROUTE:" + k.GetKey()
	}
	return MetadataKey{Source: from, Namespace: k.GetKey(), Key: path[0]}, checkPath(at, command, path)
}

// checkPath returns an error for a path whose value Envoy does not give to modules.
func checkPath(at, command string, path []string) error {
	if len(path) == 1 {
		return nil
	}
	return fmt.Errorf("%s: Envoy gives modules only values directly below a namespace; have the filter "+
		"envoy.filters.http.header_mutation before this one write %%%s:%s)%% into a request header, and use that header",
		at, command, strings.Join(path, ":"))
}

// metadataAction reads a text of metadata. An empty text and a number count as absent.
func (p *Phase) metadataAction(at string, m *routev3.RateLimit_Action_MetaData) (action, error) {
	source := DynamicMetadata
	if m.GetSource() == routev3.RateLimit_Action_MetaData_ROUTE_ENTRY {
		source = RouteMetadata
	}
	key, err := metadataKey(at, source, m.GetMetadataKey())
	read, instead, otherwise := p.readMetadata(key), m.GetDefaultValue(), absent(m.GetSkipIfAbsent())
	if instead != "" {
		otherwise = yes
	}
	return action{m.GetDescriptorKey(), func(req *Request) (string, found) {
		if value := req.valueOf(read).Text; len(value) > 0 {
			return text(value), yes
		}
		return instead, otherwise
	}}, err
}
