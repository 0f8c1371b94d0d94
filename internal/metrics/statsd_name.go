package metrics

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	dto "github.com/prometheus/client_model/go"
)

// classicNames are those classic metrics that envoyproxy/ratelimit sends by statsd under names of another form than by
// Prometheus. * stands for the value of the label.
var classicNames = map[string]string{
	"total_requests":          "ratelimit_server.*.total_requests",
	"response_time_seconds":   "ratelimit_server.*.response_time",
	"should_rate_limit_error": "ratelimit.service.call.should_rate_limit.*",
}

// identity tells apart series whose names are the same after clean.
func identity(name string, labels []*dto.LabelPair) string {
	parts := []string{name}
	for _, l := range labels {
		parts = append(parts, l.GetValue())
	}
	return strings.Join(parts, "\x00") + "\x00"
}

// name returns a series' name in the format, and its tags, which end its line.
func (s *Statsd) name(metric string, labels []*dto.LabelPair) (name, tags string) {
	classic := strings.TrimPrefix(metric, "ratelimit_service_")
	rule, isRule := strings.CutPrefix(classic, "rate_limit_")
	if s.o.Format == dogstatsdFormat {
		if isRule {
			classic = "rate_limit." + rule
		}
		return "ratelimit.service." + classic, s.tagged(labels)
	}
	values := strings.Join(classicParts(labels), ".")
	if isRule {
		return "ratelimit.service.rate_limit." + values + "." + rule, ""
	}
	if form := classicNames[classic]; form != "" {
		return strings.ReplaceAll(form, "*", values), ""
	}
	return "ratelimit.service." + classic, ""
}

// classicParts are the labels' values in the alphabetical order of the labels, which is that of envoyproxy/ratelimit's
// names.
func classicParts(labels []*dto.LabelPair) (parts []string) {
	for _, l := range labels {
		if l.GetValue() != "" { // a rule of one level has no key2
			parts = append(parts, clean(l.GetValue(), func(c rune) bool {
				return c < unicode.MaxASCII && (unicode.IsLetter(c) || unicode.IsDigit(c) || c == '_' || c == '-')
			}))
		}
	}
	return parts
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

// WriteText writes a line for each of the classic counters and for the count of a histogram, "name: value", by the
// names of statsd.
func (m *Metrics) WriteText(w io.Writer) error {
	families, err := m.classic.Gather()
	if len(families) == 0 {
		return err
	}
	names := Statsd{o: StatsdOptions{Format: statsdFormat}}
	var lines []string
	for _, f := range families {
		for _, s := range f.GetMetric() {
			name, _ := names.name(f.GetName(), s.GetLabel())
			value := s.GetCounter().GetValue()
			if h := s.GetHistogram(); h != nil {
				value = float64(h.GetSampleCount())
			}
			lines = append(lines, name+": "+strconv.FormatFloat(value, 'f', -1, 64))
		}
	}
	slices.Sort(lines)
	_, err = io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}
