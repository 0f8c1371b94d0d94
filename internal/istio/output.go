package istio

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"
)

// Limits of Weir and of Kubernetes for what is generated.
const (
	maxDescriptors = 128     // of a request
	maxEntries     = 32      // of a descriptor
	maxBytes       = 1 << 20 // of an object
)

// fields are an object of JSON.
type fields = map[string]any

//go:embed objects.yaml.tmpl
var objectsText string

var objects = template.Must(template.New("").Funcs(template.FuncMap{"json": asJSON}).Parse(objectsText))

func asJSON(value any) (string, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return strings.TrimSpace(text.String()), err
}

// file returns an object as a file whose header has a hash of the rest.
func (in *input) file(from node, name, kind string, data any) File {
	var text bytes.Buffer
	if err := objects.ExecuteTemplate(&text, kind, data); err != nil {
		in.refuse(from, "%s cannot be written: %v", name, err)
	}
	if text.Len() > maxBytes {
		in.refuse(from, "%s would have %d bytes, the maximum is %d; write fewer limits", name, text.Len(), maxBytes)
	}
	return File{name, fmt.Appendf(nil, "# Written by weir generate istio, version %s; changes will be overwritten.\n"+
		"# SHA-256 of the lines below: %x\n%s", in.Version, sha256.Sum256(text.Bytes()), text.Bytes())}
}

// filterFile returns the EnvoyFilter of a workload.
func (in *input) filterFile(w *workload) File {
	var own, lists []fields
	for _, l := range w.lists {
		if len(l.limits) > maxDescriptors {
			in.refuse(w.from[0], "Envoy would send %d descriptors with a request to %s, the maximum is %d; write fewer limits "+
				"for this gateway or service", len(l.limits), w.fullName(), maxDescriptors)
		}
		var limits []fields
		for _, one := range l.limits {
			if len(one.entries) >= maxEntries {
				in.refuse(w.from[0], "limit %s would have %d entries in its descriptor, the maximum is %d; write fewer conditions",
					one.rule, len(one.entries)+1, maxEntries)
			}
			limits = append(limits, one.rateLimit())
		}
		if l.applyTo == httpFilter {
			own = []fields{{"limits": limits}}
			continue
		}
		match := fields{"context": w.context}
		if l.match != nil {
			match["routeConfiguration"] = l.match
		}
		lists = append(lists, fields{"applyTo": l.applyTo, "match": match, "limits": limits})
	}
	return in.file(w.from[0], "envoyfilter-"+w.namespace+"_"+w.name+".yaml", "filter", fields{
		"name": w.name, "namespace": w.namespace, "revision": in.Revision, "selector": w.selector, "target": w.target,
		"context": w.context, "listener": w.listener, "own": own, "lists": lists,
	})
}

// rateLimit returns Envoy's message RateLimit of a limit.
func (l *limit) rateLimit() fields {
	actions := []fields{{"generic_key": fields{"descriptor_key": "limit", "descriptor_value": l.rule}}}
	for _, e := range l.entries {
		actions = append(actions, e.action)
	}
	message := fields{"actions": actions}
	if l.addend != nil {
		message["hits_addend"] = l.addend
	}
	if l.onDone {
		message["apply_on_stream_done"] = true
	}
	if l.headers != "" {
		message["x_ratelimit_option"] = l.headers
	}
	return message
}

// A rule is an item of descriptors of a rule file.
type rule struct {
	Key         string  `yaml:"key"`
	Value       string  `yaml:"value,omitempty"`
	ShadowMode  bool    `yaml:"shadow_mode,omitempty"`
	RateLimit   *rate   `yaml:"rate_limit,omitempty,flow"`
	Descriptors []*rule `yaml:"descriptors,omitempty"`
}

type rate struct {
	Name            string `yaml:"name"`
	Algorithm       string `yaml:"algorithm"`
	RequestsPerUnit int64  `yaml:"requests_per_unit"`
	Unit            string `yaml:"unit"`
}

// makeRule returns the rule of a limit. It does not depend on the places of the limit.
func (l *limit) makeRule() (r *rule) {
	counter := &rate{Name: l.rule, Algorithm: "fixed_window", RequestsPerUnit: l.requests, Unit: l.unit}
	isCounted := true // the last entry, and the entry before an optional one
	for _, e := range slices.Backward(append([]entry{{key: "limit", value: l.rule}}, l.entries...)) {
		outer := &rule{Key: e.key, Value: e.value}
		if r != nil {
			outer.Descriptors = []*rule{r}
		}
		if isCounted {
			outer.RateLimit, outer.ShadowMode = counter, l.shadowMode
		}
		r, isCounted = outer, e.optional
	}
	return r
}

// rulesFile returns the ConfigMap with the rules of all limits.
func (in *input) rulesFile(workloads []workload) File {
	rules, from := map[string]*rule{}, node{&yaml.Node{}, ""}
	for _, w := range workloads {
		from = w.from[0]
		for _, l := range w.lists {
			for _, one := range l.limits {
				rules[one.rule] = one.makeRule()
			}
		}
	}
	if len(rules) == 0 {
		rules[""] = &rule{Key: "none"} // a rule file must have a rule; this one limits nothing
	}
	var sorted []*rule
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		sorted = append(sorted, rules[name])
	}
	text, err := yaml.Marshal(sorted)
	if err != nil {
		in.refuse(from, "the rules cannot be written: %v", err)
	}
	lines := strings.ReplaceAll(strings.TrimSuffix(string(text), "\n"), "\n", "\n    ")
	return in.file(from, "weir-istio-rules.yaml", "rules", lines)
}
