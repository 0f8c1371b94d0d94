package statsd

import (
	"slices"
	"strings"
	"unicode"

	"github.com/weir-ratelimit/weir/internal/metrics"
)

// identity tells series apart whose names look the same once they are sanitized.
func identity(s *metrics.Sample) string {
	var b strings.Builder
	b.WriteString(s.Name)
	for _, l := range s.Labels {
		b.WriteByte(0)
		b.WriteString(l.Value)
	}
	b.WriteByte(0)
	return b.String()
}

// name is the sample's in the format, and the end of its line. weir_decisions_total is weir.decisions, and those of
// envoyproxy/ratelimit have the names that they have there.
func (s *Sender) name(of *metrics.Sample) (name, tags string) {
	classic, isClassic := strings.CutPrefix(of.Name, "ratelimit_service_")
	if s.o.Format == dogstatsd {
		name = s.o.Prefix + plainName(of.Name)
		if isClassic {
			name = classicStart(classic)
		}
		return name, s.tagged(of.Labels)
	}
	if isClassic {
		return classicName(classic, of.Labels), ""
	}
	parts := []string{s.o.Prefix + plainName(of.Name)}
	for _, l := range slices.SortedStableFunc(slices.Values(of.Labels), byRank) {
		parts = append(parts, part(l.Value))
	}
	return strings.Join(parts, "."), ""
}

// byRank puts a limit's labels from the whole to its parts, as Graphite shows them; others stay as they are.
func byRank(a, b metrics.Label) int { return rank(a) - rank(b) }

func rank(l metrics.Label) int {
	if i := slices.Index([]string{"domain", "rule", "limit"}, l.Name); i >= 0 {
		return i
	}
	return 3
}

func plainName(name string) string {
	return strings.TrimSuffix(strings.TrimPrefix(name, "weir_"), "_total")
}

// classicName is as envoyproxy/ratelimit sends it: ratelimit.service.rate_limit.DOMAIN.KEY1.KEY2.total_hits. The labels
// stand in that order, which is the alphabet's.
func classicName(name string, labels []metrics.Label) string {
	var path []string
	for _, l := range labels {
		if l.Value != "" { // a rule of one level has no key2
			path = append(path, part(l.Value))
		}
	}
	values := strings.Join(path, ".")
	stat, isRule := strings.CutPrefix(name, "rate_limit_")
	switch {
	case isRule:
		return "ratelimit.service.rate_limit." + values + "." + stat
	case name == "should_rate_limit_error":
		return "ratelimit.service.call.should_rate_limit." + values
	case name == "total_requests" || name == "response_time_seconds":
		return "ratelimit_server." + values + "." + strings.TrimSuffix(name, "_seconds")
	default:
		return "ratelimit.service." + name
	}
}

// classicStart is a classic name without labels, for dogstatsd.
func classicStart(name string) string {
	if stat, isRule := strings.CutPrefix(name, "rate_limit_"); isRule {
		return "ratelimit.service.rate_limit." + stat
	}
	return "ratelimit.service." + name
}

// part is a label's value as a part of a name.
func part(value string) string {
	if value == "" {
		return "-" // names of one metric have as many parts
	}
	return clean(value, func(c rune) bool {
		return c < unicode.MaxASCII && (unicode.IsLetter(c) || unicode.IsDigit(c) || c == '_' || c == '-')
	})
}

// tagged is the end of a line with these labels and the tags of the options.
func (s *Sender) tagged(labels []metrics.Label) string {
	all := make([]string, 0, len(labels)+1)
	for _, l := range labels {
		if l.Value != "" {
			all = append(all, l.Name+":"+clean(l.Value, func(c rune) bool {
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

// clean replaces what is not right, and cuts what is too long.
func clean(value string, right func(c rune) bool) string {
	value = strings.Map(func(c rune) rune {
		if right(c) {
			return c
		}
		return '_'
	}, value)
	if len(value) > maxPart {
		value = strings.ToValidUTF8(value[:maxPart], "")
	}
	return value
}
