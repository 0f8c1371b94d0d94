package shield

import (
	"bytes"
	_ "embed"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

//go:embed filter.yaml.tmpl
var filterText string

var filter = template.Must(template.New("filter").Funcs(template.FuncMap{
	"quote": strconv.Quote, "seconds": seconds,
	"limits": Bucket.isLimiting,
	"shown":  func(r *descriptors.Rule) string { return words.Shorten(words.Shown(r.Path)) },
}).Parse(filterText))

// seconds writes an interval as Envoy reads it: without an exponent, whatever its length.
func seconds(b Bucket) string { return strconv.FormatFloat(b.Interval.Seconds(), 'f', -1, 64) + "s" }

// YAML returns the shield as one item of http_filters, with a comment for each rule that says where it is written.
// The actions are Envoy's rate_limits as lines of YAML, if they are known.
func (s *Shield) YAML(domain, actions string) ([]byte, error) {
	var b bytes.Buffer
	err := filter.Execute(&b, map[string]any{
		"Shield": s, "Domain": domain, "Actions": indented(actions, 4), "Plenty": uint32(math.MaxUint32),
	})
	return b.Bytes(), err
}

// Actions returns the first rate_limits of an Envoy configuration, with what is below it.
func Actions(envoy []byte) string {
	lines := strings.Split(string(envoy), "\n")
	first := slices.IndexFunc(lines, func(l string) bool { return strings.TrimSpace(l) == "rate_limits:" })
	if first < 0 {
		return ""
	}
	depth := strings.Index(lines[first], "rate_limits:")
	block := []string{strings.TrimSpace(lines[first])}
	for _, l := range lines[first+1:] {
		if len(l) < depth || strings.TrimSpace(l[:depth+1]) != "" {
			break
		}
		block = append(block, l[depth:])
	}
	return strings.Join(block, "\n")
}

func indented(text string, by int) string {
	return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", by))
}

// Into returns an Envoy configuration with the filter before the one that asks Weir.
func Into(envoy, filter []byte) []byte {
	const asks = "- name: envoy.filters.http.ratelimit\n"
	at := bytes.Index(envoy, []byte(asks))
	if at < 0 {
		return envoy
	}
	begin := bytes.LastIndexByte(envoy[:at], '\n') + 1
	text := indented(strings.TrimSpace(string(filter)), at-begin)
	return slices.Concat(envoy[:at], []byte(text), []byte("\n"), envoy[begin:])
}
