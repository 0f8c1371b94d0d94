package actions

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// action builds one entry of a descriptor.
type action struct {
	key   string
	value func(req *Request) (string, found)
}

// found is the result of an action.
type found uint8

const (
	no   found = iota // no value, so there is no descriptor
	skip              // no value, so the descriptor lacks this entry
	yes
)

// absent returns the result of an action whose value is absent.
func absent(skipIfAbsent bool) found {
	if skipIfAbsent {
		return skip
	}
	return no
}

// text returns a value for an entry. It replaces invalid UTF-8 as internal/rls does, so that counters have the same
// keys through the module and through gRPC.
func text(value []byte) string {
	if utf8.Valid(value) {
		return string(value)
	}
	return strings.ToValidUTF8(string(value), "?")
}

// refuse returns an error about an unsupported field.
func refuse(at, what, reason string) error {
	return fmt.Errorf("%s: %s is not supported: %s", at, what, reason)
}

func (p *Phase) compileAction(at string, a *routev3.RateLimit_Action) (action, error) {
	switch a := a.GetActionSpecifier().(type) {
	case *routev3.RateLimit_Action_GenericKey_:
		return genericKey(at+".generic_key", a.GenericKey)
	case *routev3.RateLimit_Action_RequestHeaders_:
		return p.requestHeader(a.RequestHeaders), nil
	case *routev3.RateLimit_Action_RemoteAddress_:
		p.RemoteAddress = true
		return action{"remote_address", remoteAddress}, nil
	case *routev3.RateLimit_Action_MaskedRemoteAddress_:
		return p.maskedRemoteAddress(a.MaskedRemoteAddress), nil
	case *routev3.RateLimit_Action_RemoteAddressMatch_:
		return action{}, refuse(at, "remote_address_match", "write remote_address, and the networks as cidr in the rules")
	case *routev3.RateLimit_Action_HeaderValueMatch_:
		return p.headerValueMatch(at+".header_value_match", a.HeaderValueMatch)
	case *routev3.RateLimit_Action_QueryParameters_:
		return p.queryParameter(a.QueryParameters), nil
	case *routev3.RateLimit_Action_QueryParameterValueMatch_:
		return p.queryParameterValueMatch(at+".query_parameter_value_match", a.QueryParameterValueMatch)
	case *routev3.RateLimit_Action_Metadata:
		return p.metadataAction(at+".metadata", a.Metadata)
	case *routev3.RateLimit_Action_DynamicMetadata:
		return action{}, refuse(at, "dynamic_metadata", "Envoy no longer accepts it either; write metadata instead")
	case *routev3.RateLimit_Action_Extension:
		return action{}, refuse(at+".extension", "an extension of Envoy", "only Envoy can run its code")
	case *routev3.RateLimit_Action_SourceCluster_:
		p.SourceCluster = true
		return action{"source_cluster", sourceCluster}, nil
	case *routev3.RateLimit_Action_DestinationCluster_:
		p.DestinationCluster = true
		return action{"destination_cluster", destinationCluster}, nil
	case nil:
		return action{}, errors.New(at + ": must have one action, such as generic_key")
	default:
		return action{}, refuse(at, fieldOf(a), "Weir does not know this action; use another one")
	}
}

// fieldOf returns the name of a oneof's member in a configuration.
func fieldOf(member any) string {
	name := strings.TrimSuffix(fmt.Sprintf("%T", member), "_")
	return snake(name[strings.LastIndexByte(name, '_')+1:])
}

func genericKey(at string, g *routev3.RateLimit_Action_GenericKey) (action, error) {
	value := g.GetDescriptorValue()
	constant := func(*Request) (string, found) { return value, yes }
	return action{cmp.Or(g.GetDescriptorKey(), "generic_key"), constant}, checkConstant(at, value)
}

// checkConstant refuses a descriptor_value that Envoy uses as a constant, or as a substitution format if its runtime
// sets envoy.reloadable_features.enable_formatter_for_ratelimit_action_descriptor_value.
func checkConstant(at, value string) error {
	if formatCommand.MatchString(value) {
		return refuse(at+".descriptor_value", "a substitution format",
			"Envoy applies it only with a runtime flag; use another action, such as request_headers")
	}
	return nil
}

// requestHeader reads the first value of a header.
func (p *Phase) requestHeader(h *routev3.RateLimit_Action_RequestHeaders) action {
	name, otherwise := p.header(h.GetHeaderName()), absent(h.GetSkipIfAbsent())
	return action{h.GetDescriptorKey(), func(req *Request) (string, found) {
		if value, ok := req.header(name, 0); ok {
			return text(value), yes
		}
		return "", otherwise
	}}
}

func sourceCluster(req *Request) (string, found) { return req.SourceCluster, yes }

func destinationCluster(req *Request) (string, found) {
	if !req.hasDestination {
		return "", no
	}
	return text(req.destination), yes
}
