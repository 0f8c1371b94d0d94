package istio

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Limits of Weir and of Kubernetes for what is generated.
const (
	maxDescriptors = 128     // of a request
	maxEntries     = 32      // of a descriptor
	maxBytes       = 1 << 20 // of an object
)

const (
	filterName = "weir.ratelimit"
	domain     = "istio"
	service    = "weir.weir-system.svc.cluster.local"
	typePrefix = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3."
)

// fields are an object of JSON.
type fields = map[string]any

// filterFile returns the EnvoyFilter of a workload.
func (in *input) filterFile(w *workload) File {
	filter := fields{
		"@type": typePrefix + "RateLimit", "domain": domain, "stage": 10, "timeout": "0.02s", "failure_mode_deny": false,
		"enable_x_ratelimit_headers": "DRAFT_VERSION_03",
		"rate_limit_service": fields{
			"transport_api_version": "V3",
			"grpc_service": fields{
				"envoy_grpc": fields{"cluster_name": "outbound|8081||" + service, "authority": service},
			},
		},
	}
	listener := fields{"filterChain": fields{"filter": fields{
		"name":      "envoy.filters.network.http_connection_manager",
		"subFilter": fields{"name": "envoy.filters.http.router"},
	}}}
	if w.listener != "" {
		listener["name"] = w.listener
	}
	patches := []any{fields{
		"applyTo": httpFilter, "match": fields{"context": w.context, "listener": listener},
		"patch": fields{
			"operation": "INSERT_BEFORE", "value": fields{"name": filterName, "typed_config": filter},
		},
	}}
	for _, l := range w.lists {
		if len(l.limits) > maxDescriptors {
			in.refuse(w.from[0], "EnvoyFilter %s would send %d descriptors with a request, the maximum is %d; write fewer limits "+
				"for this gateway or service", w.fullName(), len(l.limits), maxDescriptors)
		}
		limits := in.rateLimits(w, l.limits)
		if l.applyTo == httpFilter {
			filter["rate_limits"] = limits
			continue
		}
		match := fields{"context": w.context}
		if l.match != nil {
			match["routeConfiguration"] = l.match
		}
		patches = append(patches, fields{
			"applyTo": l.applyTo, "match": match, "patch": fields{"operation": "MERGE", "value": fields{
				"typed_per_filter_config": fields{
					filterName: fields{"@type": typePrefix + "RateLimitPerRoute", "rate_limits": limits},
				},
			}},
		})
	}
	spec := fields{"priority": 10, "configPatches": patches}
	if w.selector != nil {
		spec["workloadSelector"] = fields{"labels": w.selector}
	}
	if w.target != nil {
		spec["targetRefs"] = []any{w.target}
	}
	return in.file(w.from[0], "envoyfilter-"+w.namespace+"-"+w.name+".yaml", fields{
		"apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter", "spec": spec,
		"metadata": fields{
			"name": "weir-" + w.name, "namespace": w.namespace,
			"annotations": fields{"envoyfilter.istio.io/referenced-services": "weir-system/" + service},
		},
	})
}

// rateLimits returns the limits as Envoy's RateLimit messages.
func (in *input) rateLimits(w *workload, limits []limit) []fields {
	all := make([]fields, 0, len(limits)) // an empty list is not null: it exempts a route
	for _, l := range limits {
		if len(l.entries) >= maxEntries {
			in.refuse(w.from[0], "limit %s would have %d entries in its descriptor, the maximum is %d; write fewer conditions",
				l.rule, len(l.entries)+1, maxEntries)
		}
		actions := []fields{{"generic_key": fields{"descriptor_key": "limit", "descriptor_value": l.rule}}}
		for _, e := range l.entries {
			actions = append(actions, e.action)
		}
		one := fields{"actions": actions}
		if l.addend != nil {
			one["hits_addend"] = l.addend
		}
		if l.onDone {
			one["apply_on_stream_done"] = true
		}
		if l.headers != "" {
			one["x_ratelimit_option"] = l.headers
		}
		all = append(all, one)
	}
	return all
}

// file returns an object as a file, with the labels of all generated objects, and a header with a hash of the content.
func (in *input) file(from node, name string, object fields) File {
	metadata := object["metadata"].(fields) //nolint:errcheck,forcetypeassert // every object has metadata
	labels := fields{"app.kubernetes.io/managed-by": "weir", "weir.dev/set": "istio"}
	if in.Revision != "" && object["kind"] == "EnvoyFilter" {
		labels["istio.io/rev"] = in.Revision
	}
	metadata["labels"] = labels
	text := in.encode(from, object)
	if len(text) > maxBytes {
		in.refuse(from, "%s would have %d bytes, the maximum is %d; write fewer limits", name, len(text), maxBytes)
	}
	header := fmt.Sprintf("# Written by weir generate istio, version %s; changes are overwritten.\n"+
		"# SHA-256 of the lines below: %x\n", in.Version, sha256.Sum256(text))
	return File{name, append([]byte(header), text...)}
}

// encode returns the value as YAML.
func (in *input) encode(from node, value any) []byte {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(value); err != nil {
		in.refuse(from, "this cannot be written as YAML: %v", err)
	}
	return text.Bytes()
}
