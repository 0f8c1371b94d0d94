package metrics

import (
	"cmp"
	"slices"
	"strings"
)

// Describe returns every metric that there can be, by name, including those of the Go runtime and the process.
func Describe() ([]Description, error) {
	m := New(Options{Classic: true})
	var all []Description
	for _, g := range m.table() {
		all = append(all, g.describe()...)
	}
	families, err := m.registry.Gather()
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "go_") || strings.HasPrefix(f.GetName(), "process_") {
			d := Description{Name: f.GetName(), Type: strings.ToLower(f.GetType().String()), Help: f.GetHelp()}
			for _, l := range f.GetMetric()[0].GetLabel() { // all series have the same labels
				d.Labels = append(d.Labels, l.GetName())
			}
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b Description) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}
