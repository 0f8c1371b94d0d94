// Command metricsdoc writes the tables of docs/reference/metrics.md from what Weir registers: `make docs`.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/metrics"
)

const path = "docs/reference/metrics.md"

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, "metricsdoc:", err)
		os.Exit(1)
	}
}

func write() error {
	before, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	after, err := document(string(before))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(after), 0o644) //nolint:gosec // a document
}

// document writes its tables between these lines.
const (
	start = "<!-- %s: written by make docs -->\n"
	end   = "<!-- end -->\n"
)

// document returns the text of docs/reference/metrics.md with its tables up to date.
func document(text string) (string, error) {
	all, err := metrics.Describe()
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

func markdown(all []metrics.Description, prefix string) string {
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
