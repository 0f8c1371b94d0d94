package istio

import (
	"cmp"
	"slices"

	"go.yaml.in/yaml/v3"
)

// rulesName is the name of the ConfigMap, and of its file, which is mounted beside the files of the user.
const rulesName = "weir-istio-rules"

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

// child returns the rule below r with the key and value, which it adds if necessary.
func (r *rule) child(key, value string) *rule {
	for _, c := range r.Descriptors {
		if c.Key == key && c.Value == value {
			return c
		}
	}
	c := &rule{Key: key, Value: value}
	r.Descriptors = append(r.Descriptors, c)
	return c
}

// add adds the rules of a limit.
func (r *rule) add(l *limit) {
	limit := &rate{Name: l.rule, Algorithm: "fixed_window", RequestsPerUnit: l.requests, Unit: l.unit}
	at := r.child("limit", l.rule)
	for _, e := range l.entries {
		if e.optional {
			at.RateLimit, at.ShadowMode = limit, l.shadowMode
		}
		at = at.child(e.key, e.value)
	}
	at.RateLimit, at.ShadowMode = limit, l.shadowMode
}

// rulesFile returns the ConfigMap with the rules of all limits. Rules depend only on the limits, not on their places.
func (in *input) rulesFile(workloads []workload) File {
	root, from := &rule{}, node{Node: &yaml.Node{}}
	for _, w := range workloads {
		from = w.from[0]
		for _, l := range w.lists {
			for _, limit := range l.limits {
				root.add(&limit)
			}
		}
	}
	slices.SortStableFunc(root.Descriptors, func(a, b *rule) int { return cmp.Compare(a.Value, b.Value) })
	if len(root.Descriptors) == 0 {
		root.child("none", "") // a rule file must have a rule; this one limits nothing
	}
	rules := struct {
		Domain      string  `yaml:"domain"`
		Descriptors []*rule `yaml:"descriptors"`
	}{domain, root.Descriptors}
	return in.file(from, rulesName+".yaml", fields{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": fields{"name": rulesName, "namespace": "weir-system"},
		"data": fields{rulesName + ".yaml": string(in.encode(from, rules))},
	})
}
