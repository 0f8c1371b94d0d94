package offline

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
)

// Test runs a test of a file with rules, which must be compiled with the file's flags. The result is empty if the test
// passed; otherwise, it has a line for each step that failed, followed by the step's differences. Test returns an error
// if the rules do not have the domain, a request is invalid or ctx is done.
func Test(ctx context.Context, f *rulefile.TestFile, t *rulefile.TestCase, rules *descriptors.Set) (string, error) {
	if rules.Domain(f.Domain) == nil {
		var names []string
		for _, d := range rules.Domains() {
			names = append(names, d.Name())
		}
		return "", fmt.Errorf("%s: the rules have no domain %s, only %s", f.Name, f.Domain, strings.Join(names, ", "))
	}
	engine, err := newEngine(rules, maxCounters, decide.Config{ //nolint:contextcheck // the engine ends with Close
		ChargeEach: f.ChargeEach, RatelimitHeaders: true, LimitHeaders: decide.LimitHeaders{Remaining: "remaining"},
	})
	if err != nil {
		return "", err
	}
	defer engine.Close()
	run := testRun{f, engine, map[string][]string{}}
	var failures strings.Builder
	for _, s := range t.Steps {
		failed := false
		for i := range s.Times {
			different, err := run.send(ctx, s)
			if err != nil {
				return "", fmt.Errorf("%s: %w", s.At, err)
			}
			if different != "" && !failed {
				failed = true
				failures.WriteString(stepLine(s, i) + different)
			}
		}
	}
	return failures.String(), nil
}

// testRun is a running test.
type testRun struct {
	*rulefile.TestFile
	*Engine

	started map[string][]string // tokens of admitted requests that have not ended, by TestStep.Start
}

// send sends the request of a step once. It returns a line for each difference from what is expected.
func (r *testRun) send(ctx context.Context, s *rulefile.TestStep) (different string, err error) {
	var token []descriptors.Entry
	if s.End != "" {
		if len(r.started[s.End]) == 0 {
			return fmt.Sprintf("    end: no admitted request %s is left\n", s.End), nil
		}
		token = []descriptors.Entry{{Key: decide.StartKey, Value: r.started[s.End][0]}}
		r.started[s.End] = r.started[s.End][1:]
	}
	request := Request{At: r.TestFile.Start.Add(s.Since).UnixMicro(), Domain: r.Domain}
	for _, entries := range s.Request {
		d := decide.Descriptor{Entries: slices.Concat(entries, token), Cost: s.Cost}
		request.Descriptors = append(request.Descriptors, d)
	}
	v, err := r.Decide(ctx, &request)
	if err != nil {
		return "", err
	}
	if _, token := v.Start(); s.Start != "" && token != "" {
		r.started[s.Start] = append(r.started[s.Start], token)
	}
	return differences(s, v), nil
}

// stepLine returns the line that names request i of a step.
func stepLine(s *rulefile.TestStep, i int64) string {
	var request []string
	for _, entries := range s.Request {
		request = append(request, descriptors.FormatEntries(entries))
	}
	text := fmt.Sprintf("  %s:%d: %s at %s", s.At.File, s.At.Line, strings.Join(request, " "), s.Since)
	if s.Times > 1 {
		text += fmt.Sprintf(", %d of %d", i+1, s.Times)
	}
	return text + "\n"
}

// differences returns a line for each expectation that the verdict does not meet.
func differences(s *rulefile.TestStep, v *decide.Verdict) string {
	var lines strings.Builder
	names, titles := deciders(v)
	got := map[string]string{
		"decision": "allowed", "by": cmp.Or(strings.Join(titles, " and "), "no rule"), "remaining": "no limit",
		"retry_after": "no Retry-After", "delay": v.Wait.String(),
	}
	if v.Denied {
		got["decision"] = "denied"
		got["retry_after"] = (time.Duration(decide.CeilSeconds(v.RetryAfter())) * time.Second).String()
	}
	for h := range v.Headers {
		if h.IsNumber && h.Name == "remaining" {
			got["remaining"] = strconv.FormatInt(h.Number, 10)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(s.Expect)) {
		want, shown := s.Expect[field], got[field]
		if want == shown || field == "by" && slices.Contains(names, want) {
			continue
		}
		if shown == "denied" {
			shown += " by " + got["by"]
		}
		fmt.Fprintf(&lines, "    %s: want %s, got %s\n", field, want, shown)
	}
	return lines.String()
}

// deciders returns the rules and limits that deny a request or, if it is admitted, the rules that it matches: the names
// that `by` may have, and titles for people.
func deciders(v *decide.Verdict) (names, titles []string) {
	for i, l := range v.Limits {
		if v.Denies(i) {
			names = append(names, l.Rule.Path, l.Rule.Path+": "+l.Name)
			titles = append(titles, l.Title())
		}
	}
	for i := range v.Statuses {
		if rule := v.Statuses[i].Rule; rule != nil && !v.Denied {
			names = append(names, rule.Path)
			titles = append(titles, descriptors.Located(rule.Path, rule.Source))
		}
	}
	return names, titles
}
