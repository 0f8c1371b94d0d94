// Package istio generates Istio's EnvoyFilters, and the rules that belong to them, from limits and policies.
//
// Envoy sends a descriptor per limit, whose first entry is the limit's name. So the rules depend only on the input, and
// a second run with the same input changes no counter.
package istio

import (
	"cmp"
	"slices"

	"go.yaml.in/yaml/v3"
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
	Files  []File   // the ConfigMap of rules, then the EnvoyFilters by name
	Report []string // lines
}

// rootNamespace is the namespace whose EnvoyFilters reach the pods of every namespace.
const rootNamespace = "istio-system"

// Generate generates the output for the YAML files. The error is descriptors.Errors with everything that it refuses.
func Generate(files []File, o Options) (*Output, error) {
	in := &input{Options: o, objects: map[string][]*object{}, named: map[[2]string]*object{}}
	for _, f := range files {
		in.read(f)
	}
	if len(in.objects[kindPolicy])+len(in.objects[kindShort])+len(in.errs) == 0 {
		in.refuse(node{&yaml.Node{Line: 1, Column: 1}, files[0].Name}, "no file has limits: or a BackendTrafficPolicy, so "+
			"nothing would be limited; to remove all limits, see docs/start/istio.md")
	}
	in.sort()
	workloads := in.merge(append(in.policies(), in.shortForm()...))
	out := &Output{Files: []File{in.rulesFile(workloads)}}
	for i := range workloads {
		out.Files = append(out.Files, in.filterFile(&workloads[i]))
		in.reportf(workloads[i].from[0], "%s", workloads[i].access())
	}
	if len(in.errs) > 0 {
		return nil, in.sortedErrors()
	}
	slices.Sort(in.report)
	out.Report = in.report
	return out, nil
}

// merge unites the workloads that are the same proxies, sorted by name.
func (in *input) merge(all []workload) (merged []workload) {
	slices.SortStableFunc(all, func(a, b workload) int { return cmp.Compare(a.fullName(), b.fullName()) })
	for _, w := range all {
		i := slices.IndexFunc(merged, func(m workload) bool { return m.overlaps(&w) })
		switch {
		case i < 0:
			merged = append(merged, w)
		case merged[i].isSame(&w):
			merged[i].lists = append(merged[i].lists, w.lists...)
			merged[i].from = append(merged[i].from, w.from...)
		default:
			in.refuse(w.from[0], "the EnvoyFilters %s and %s (%s) may have the same pods or the same name, and one pod must "+
				"have one of them; write the same gateway or service in both", w.fullName(), merged[i].fullName(),
				merged[i].from[0].position())
		}
	}
	for i := range merged {
		merged[i].lists = mergeLists(merged[i].lists)
	}
	return merged
}

// mergeLists unites the lists of the same place. The filter's own list also joins the other lists, which hide it.
func mergeLists(all []list) (merged []list) {
	slices.SortStableFunc(all, func(a, b list) int { return cmp.Compare(a.place(), b.place()) })
	var own []limit
	for _, l := range all {
		if l.applyTo == httpFilter {
			own = append(own, l.limits...)
		}
		if last := len(merged) - 1; last >= 0 && merged[last].place() == l.place() {
			merged[last].limits = slices.Concat(merged[last].limits, l.limits)
		} else {
			merged = append(merged, l)
		}
	}
	for i := range merged {
		if merged[i].applyTo != httpFilter {
			merged[i].limits = slices.Concat(merged[i].limits, own)
		}
		slices.SortStableFunc(merged[i].limits, func(a, b limit) int { return cmp.Compare(a.rule, b.rule) })
	}
	return merged
}
