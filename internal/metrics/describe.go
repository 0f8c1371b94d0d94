package metrics

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Description is a metric as documentation shows it.
type Description struct {
	Name, Type, Help string
	Labels           []string
}

// Describe is every metric that there can be, by name: those of Go and of the process, too.
func Describe() ([]Description, error) {
	m, err := complete()
	if err != nil {
		return nil, err
	}
	families, err := m.registry.Gather()
	all := make([]Description, len(families))
	for i, f := range families {
		all[i] = Description{Name: f.GetName(), Type: strings.ToLower(f.GetType().String()), Help: f.GetHelp(), Labels: labelsIn(f)}
	}
	return all, err
}

// labelsIn are the names of the family's labels; all of its series have the same.
func labelsIn(f *dto.MetricFamily) []string {
	var names []string
	for _, l := range f.GetMetric()[0].GetLabel() {
		names = append(names, l.GetName())
	}
	return names
}

// complete has a series of every metric.
func complete() (*Metrics, error) {
	m := New(Options{MaxRules: 1, Classic: true})
	set, err := descriptors.Compile([]descriptors.File{{Name: "rules.yaml", Data: []byte(
		"domain: d\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 1, unit: second}}]",
	)}})
	if err != nil {
		return nil, err
	}
	m.RulesCompiled(set)
	m.RulesLoaded("")
	for _, hits := range []int64{1, -1} {
		m.Decided(set.Limits()[0], decide.Denied, hits, &limiter.Decision{Known: true})
	}
	m.Answered(set.Domains()[0], false)
	m.Rejected(codes.InvalidArgument)
	_, err = m.Timed(nil, "")
	return m, errors.Join(err,
		m.WatchBoosts(func() (int, bool) { return 0, true }),
		m.WatchClients(func() []ClientStats { return []ClientStats{{Listener: "grpc", Refused: map[string]uint64{"": 0}}} }),
		m.WatchDecisionLog(func() DecisionLogStats { return DecisionLogStats{Dropped: map[string]uint64{"rate": 0}} }),
		m.WatchLog(func() LogStats { return LogStats{} }),
		m.WatchBreaker(func() int { return 0 }),
		m.WatchHandshakes(map[string]func() uint64{"http": func() uint64 { return 0 }}),
		m.WatchFiles(func() int { return 0 }),
		m.WatchDenials(func() uint64 { return 0 }),
		m.WatchHeld(func() HeldStats { return HeldStats{} }),
		m.WatchLeases(func() LeaseStats { return LeaseStats{} }),
		m.WatchMemory(func() MemoryStats { return MemoryStats{} }),
		m.WatchPolicy(func() map[string]time.Duration { return map[string]time.Duration{"": 0} }),
		m.WatchPublished(func() PublishedStats { return PublishedStats{} }),
		m.WatchStores(func() []StoreStats { return []StoreStats{{}} }),
	)
}

// The parts of the document that Document writes stand between these lines.
const (
	generated = "<!-- %s: written by make docs -->\n"
	written   = "<!-- end -->\n"
)

// Document is the text with its tables written anew.
func Document(text string) (string, error) {
	all, err := Describe()
	if err != nil {
		return "", err
	}
	for what, prefix := range map[string]string{"metrics": "weir_", "classic": "ratelimit_"} {
		start := fmt.Sprintf(generated, what)
		before, rest, found := strings.Cut(text, start)
		_, after, ended := strings.Cut(rest, written)
		if !found || !ended {
			return "", fmt.Errorf("there is no %q with %q after it", start, written)
		}
		text = before + start + markdown(all, prefix) + written + after
	}
	return text, nil
}

func markdown(all []Description, prefix string) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | |\n|---|---|---|---|\n")
	for _, d := range all {
		if strings.HasPrefix(d.Name, prefix) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, code(d.Labels), d.Help)
		}
	}
	return b.String()
}

// code shows names as such.
func code(names []string) string {
	names = slices.Clone(names)
	for i, n := range names {
		names[i] = "`" + n + "`"
	}
	return strings.Join(names, ", ")
}
