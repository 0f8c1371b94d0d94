// Package istio generates Istio's EnvoyFilters, and the rules that belong to them, from limits and policies.
//
// Envoy sends a descriptor per limit, whose first entry is the limit's name. So the rules depend only on the input, and
// a second run with the same input changes no counter.
package istio

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"text/template"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// Options say what the input does not.
type Options struct {
	Selector          map[string]string // labels of the gateways whose objects are not in the input; may be empty
	Revision          string            // Istio's control plane that reads the EnvoyFilters; empty for all of them
	OneCounterPerRule bool              // a policy's rule with several matches has one counter
	Version           string            // Weir's, for the header
}

// A File is a file of the input or of the output.
type File struct {
	Name string
	Data []byte
}

// Output has the files to apply, and a report for people.
type Output struct {
	Files  []File             // the ConfigMap of rules, then the EnvoyFilters by name
	Report descriptors.Errors // remarks
}

// Generate generates the output for the YAML files. The error is descriptors.Errors with everything that it refuses.
func Generate(files []File, o Options) (*Output, error) {
	in := &input{
		Options: o, objects: map[string][]*object{}, named: map[string]*object{}, workloads: map[string]*workload{},
		rules: map[string]fields{},
	}
	if err := yaml.Unmarshal(schemaText, &in.schemas); err != nil {
		return nil, err
	}
	start := node{&yaml.Node{Line: 1, Column: 1}, in, files[0].Name}
	in.read(files)
	in.policies()
	in.shortForm()
	out := &Output{Files: make([]File, 1)}
	var workloads []*workload
	for _, name := range slices.Sorted(maps.Keys(in.workloads)) {
		w := in.workloads[name]
		workloads = append(workloads, w)
		out.Files = append(out.Files, in.filterFile(w))
	}
	checkPods(workloads)
	if len(in.objects[kindShort])+len(in.rules)+len(in.errs) == 0 {
		start.refuse("no file has limits: or a policy with rules; to remove all limits, see docs/start/istio.md")
	}
	out.Files[0] = in.file(start, "weir-istio-rules.yaml", "rules", in.rules)
	if errs := sorted(in.errs); len(errs) > maxErrors {
		last := errs[maxErrors]
		last.More, last.Msg = len(errs)-maxErrors, fmt.Sprintf("and %d more; correct the first ones", len(errs)-maxErrors)
		return nil, errs[:maxErrors+1]
	} else if len(errs) > 0 {
		return nil, errs
	}
	out.Report = sorted(in.report)
	return out, nil
}

// Limits of Weir and of Kubernetes for what is generated, and of errors.
const (
	maxDescriptors = 128     // of a request
	maxEntries     = 32      // of a descriptor
	maxBytes       = 1 << 20 // of an object
	maxRegex       = 16_000  // bytes; Istio's re2.max_program_size is 32768 instructions
	maxErrors      = 100     // that are listed
)

// fields are an object of JSON.
type fields = map[string]any

//go:embed objects.yaml.tmpl
var objectsText string

var objects = template.Must(template.New("").Funcs(template.FuncMap{"json": json.Marshal, "yaml": yaml.Marshal}).
	Parse(objectsText))

// file returns an object as a file whose header has a hash of the rest.
func (in *input) file(from node, name, kind string, data any) File {
	var text bytes.Buffer
	if err := objects.ExecuteTemplate(&text, kind, data); err != nil {
		from.refuse("%s cannot be written: %v", name, err)
	}
	if text.Len() > maxBytes {
		from.refuse("%s would have %d bytes, the maximum is %d; write fewer limits", name, text.Len(), maxBytes)
	}
	return File{name, fmt.Appendf(nil, "# Written by weir generate istio, version %s; changes will be overwritten.\n"+
		"# SHA-256 of the lines below: %x\n%s", in.Version, sha256.Sum256(text.Bytes()), text.Bytes())}
}

// filterFile returns the EnvoyFilter of a workload. A list hides the filter's own, so it has those limits, too.
func (in *input) filterFile(w *workload) File {
	var lists []fields
	slices.SortFunc(w.lists, func(a, b list) int { return cmp.Compare(a.place(), b.place()) })
	for _, l := range w.lists {
		limits := in.rateLimits(w, slices.Concat(l.limits, w.own))
		lists = append(lists, fields{"applyTo": l.applyTo, "match": l.match, "limits": limits})
	}
	w.from.reportf("%s", w)
	return in.file(w.from, "envoyfilter-"+w.namespace+"_"+w.name+".yaml", "filter", fields{
		"name": w.name, "namespace": w.namespace, "revision": in.Revision, "selector": w.selector, "context": w.context,
		"isWaypoint": w.isWaypoint(), "own": in.rateLimits(w, w.own), "lists": lists,
	})
}

// rateLimits returns Envoy's messages RateLimit for the limits of a place, sorted by name, and collects their rules.
func (in *input) rateLimits(w *workload, limits []limit) (all []fields) {
	if len(limits) > maxDescriptors {
		w.from.refuse("Envoy would send %d descriptors with a request to %s, the maximum is %d; write fewer limits for this "+
			"gateway or service", len(limits), w.fullName(), maxDescriptors)
		return nil
	}
	slices.SortStableFunc(limits, func(a, b limit) int { return cmp.Compare(a.rule, b.rule) })
	for _, l := range limits {
		descriptor := l.descriptor(w)
		if len(descriptor) > maxEntries {
			l.at.refuse("limit %s would have %d entries in its descriptor, the maximum is %d; write fewer conditions",
				l.rule, len(descriptor), maxEntries)
		}
		var actions []fields
		for _, e := range descriptor {
			actions = append(actions, e.action)
		}
		message := fields{"actions": actions}
		maps.Copy(message, l.options)
		all = append(all, message)
		in.rules[l.rule] = fields{
			"requests": l.requests, "unit": l.unit, "shadowMode": l.shadowMode, "levels": levels(descriptor),
		}
	}
	return all
}

// levels returns the entries of a descriptor as levels of its rule, each below the one before. The last one counts, and
// so does one before an optional entry.
func levels(descriptor []entry) (all []fields) {
	indent := "    "
	for i, e := range descriptor {
		isLast := i+1 == len(descriptor)
		all = append(all, fields{
			"indent": indent, "key": e.key, "value": e.value, "isOuter": !isLast,
			"isCounted": isLast || descriptor[i+1].optional,
		})
		indent += "    "
	}
	return all
}
