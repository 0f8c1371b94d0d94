package metrics

import (
	"bufio"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	dto "github.com/prometheus/client_model/go"
)

// classicNames are the names of classic metrics in statsd's format, as envoyproxy/ratelimit sends them.
var classicNames = func() map[string]string {
	names := map[string]string{}
	for _, r := range classicRuleRows {
		names[r.Name] = r.statsd
	}
	for _, r := range classicRows {
		names[r.Name] = r.statsd
	}
	return names
}()

// identity tells apart series whose names are the same after clean.
func identity(name string, labels []*dto.LabelPair) string {
	var b strings.Builder
	b.WriteString(name)
	for _, l := range labels {
		b.WriteByte(0)
		b.WriteString(l.GetValue())
	}
	b.WriteByte(0)
	return b.String()
}

// name returns a series' name in the format, and its tags, which end its line. weir_decisions_total is weir.decisions.
func (s *Statsd) name(metric string, labels []*dto.LabelPair) (name, tags string) {
	own := s.o.Prefix + strings.TrimSuffix(strings.TrimPrefix(metric, "weir_"), "_total")
	classic, isClassic := strings.CutPrefix(metric, "ratelimit_service_")
	switch {
	case s.o.Format == dogstatsdFormat && isClassic:
		if stat, isRule := strings.CutPrefix(classic, "rate_limit_"); isRule {
			classic = "rate_limit." + stat
		}
		return "ratelimit.service." + classic, s.tagged(labels)
	case s.o.Format == dogstatsdFormat:
		return own, s.tagged(labels)
	case isClassic:
		return strings.ReplaceAll(classicNames[metric], "*", strings.Join(classicParts(labels), ".")), ""
	}
	parts := []string{own}
	for _, l := range slices.SortedStableFunc(slices.Values(labels), byRank) {
		parts = append(parts, part(l.GetValue()))
	}
	return strings.Join(parts, "."), ""
}

// classicParts are the labels' values in the alphabetical order of the labels, which is that of envoyproxy/ratelimit's
// names.
func classicParts(labels []*dto.LabelPair) (parts []string) {
	for _, l := range labels {
		if l.GetValue() != "" { // a rule of one level has no key2
			parts = append(parts, part(l.GetValue()))
		}
	}
	return parts
}

// byRank puts a limit's labels from the whole to its parts, as Graphite shows them; others keep their order.
func byRank(a, b *dto.LabelPair) int { return rank(a) - rank(b) }

func rank(l *dto.LabelPair) int {
	if i := slices.Index([]string{"domain", "rule", "limit"}, l.GetName()); i >= 0 {
		return i
	}
	return 3
}

// part returns a label's value as a part of a name.
func part(value string) string {
	if value == "" {
		return "-" // names of one metric have as many parts
	}
	return clean(value, func(c rune) bool {
		return c < unicode.MaxASCII && (unicode.IsLetter(c) || unicode.IsDigit(c) || c == '_' || c == '-')
	})
}

// tagged returns the end of a line with these labels and the tags of the options.
func (s *Statsd) tagged(labels []*dto.LabelPair) string {
	var all []string
	for _, l := range labels {
		if l.GetValue() != "" {
			all = append(all, l.GetName()+":"+clean(l.GetValue(), func(c rune) bool {
				return unicode.IsPrint(c) && c != ',' && c != '|' && c != '#'
			}))
		}
	}
	if s.tags != "" {
		all = append(all, s.tags)
	}
	if len(all) == 0 {
		return ""
	}
	return "|#" + strings.Join(all, ",")
}

// clean replaces runes that are not allowed, and cuts what is too long.
func clean(value string, isAllowed func(c rune) bool) string {
	value = strings.Map(func(c rune) rune {
		if isAllowed(c) {
			return c
		}
		return '_'
	}, value)
	if len(value) > maxPart {
		value = strings.ToValidUTF8(value[:maxPart], "")
	}
	return value
}

// WriteText writes a line for each counter, gauge and count of a histogram, "name: value", by the names of statsd.
func (m *Metrics) WriteText(w io.Writer) error {
	families, err := m.Gather()
	if len(families) == 0 {
		return err
	}
	names := Statsd{o: StatsdOptions{Format: statsdFormat, Prefix: "weir."}}
	var lines []string
	for _, f := range families {
		for _, s := range f.GetMetric() {
			name, _ := names.name(f.GetName(), s.GetLabel())
			lines = append(lines, name+": "+strconv.FormatFloat(valueOf(s), 'f', -1, 64))
		}
	}
	slices.Sort(lines)
	out := bufio.NewWriter(w)
	for _, line := range lines {
		_, _ = out.WriteString(line) // Flush returns its error
		_ = out.WriteByte('\n')
	}
	return out.Flush()
}

func valueOf(s *dto.Metric) float64 {
	switch {
	case s.GetCounter() != nil:
		return s.GetCounter().GetValue()
	case s.GetHistogram() != nil:
		return float64(s.GetHistogram().GetSampleCount())
	default:
		return s.GetGauge().GetValue()
	}
}
