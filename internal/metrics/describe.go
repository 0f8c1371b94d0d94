package metrics

import (
	"cmp"
	"fmt"
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

// Document writes its tables between these lines.
const (
	start = "<!-- %s: written by make docs -->\n"
	end   = "<!-- end -->\n"
)

// Document returns the text of docs/reference/metrics.md with its tables up to date.
func Document(text string) (string, error) {
	all, err := Describe()
	if err != nil {
		return "", err
	}
	for what, prefix := range map[string]string{"metrics": "weir_", "classic": "ratelimit_"} {
		start := fmt.Sprintf(start, what)
		before, rest, found := strings.Cut(text, start)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			return "", fmt.Errorf("there is no %q with %q after it", start, end)
		}
		text = before + start + markdown(all, prefix) + end + after
	}
	return text, nil
}

func markdown(all []Description, prefix string) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, d := range all {
		if strings.HasPrefix(d.Name, prefix) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, markdownCode(d.Labels), d.Help)
		}
	}
	return b.String()
}

func markdownCode(names []string) string {
	var quoted []string
	for _, name := range slices.Sorted(slices.Values(names)) {
		quoted = append(quoted, "`"+name+"`")
	}
	return strings.Join(quoted, ", ")
}
