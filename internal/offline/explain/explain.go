// Package explain shows why a request is limited or not: which rules its descriptors match, where matching stops, the
// counters, and the response. It uses the matching of internal/descriptors and the decisions of internal/decide.
package explain

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/offline"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Report is the JSON of GET /explain and of explain --format json.
type Report struct {
	Domain string `json:"domain"`
	// Hits is the cost of each descriptor.
	Hits uint32 `json:"hits"`
	// Live reports whether the counters come from a running process. Otherwise all counters are unused.
	Live        bool         `json:"live"`
	Answer      Answer       `json:"answer"`
	Descriptors []Descriptor `json:"descriptors"`
}

// Answer is the response to the request.
type Answer struct {
	Code string `json:"code"` // OK or OVER_LIMIT
	// DeniedBy are the limits that deny the request.
	DeniedBy []string `json:"denied_by,omitempty"`
	// RetryAfter is the Retry-After in seconds: 0 if the request is admitted, nil (null in JSON) if waiting does not help.
	RetryAfter *float64 `json:"retry_after_seconds"`
	// Wait is the delay of the response in seconds.
	Wait    float64              `json:"wait_seconds,omitempty"`
	Headers []descriptors.Header `json:"headers,omitempty"`
	Body    string               `json:"body,omitempty"`
	// StoreError is the error of the store, because of which each limit's on_store_failure applied.
	StoreError string `json:"store_error,omitempty"`
}

// Descriptor is one descriptor of the request.
type Descriptor struct {
	Entries []descriptors.Entry `json:"entries"`
	Code    string              `json:"code"`
	// Levels are the entries that match a rule, with the rule.
	Levels []Level `json:"levels"`
	// Rule is the rule that the last entry matches, or nil.
	Rule *Rule `json:"rule,omitempty"`
	// Message is the reason why no limit applies: the level where matching stops, and up to three similar keys or values
	// of that level, or the pattern that a value is too long for.
	Message string  `json:"message,omitempty"`
	Limits  []Limit `json:"limits,omitempty"`
}

// Level is an entry that matches a rule.
type Level struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	// By is the part of the rule that matches: value (equal), pattern, cidr, regex, or key for a rule without a value. It
	// is too_long if the value is too long to be matched.
	By     string `json:"by"`
	Rule   string `json:"rule"`
	Source string `json:"source"`
	// Also are the positions of later rules that match as well.
	Also []string `json:"also,omitempty"`
}

// Rule is a rule in a Report.
type Rule struct {
	Path        string `json:"path"`
	Source      string `json:"source"`
	Mode        string `json:"mode,omitempty"` // shadow or quota
	Description string `json:"description,omitempty"`
	Owner       string `json:"owner,omitempty"`
}

// Limit is a limit of the rule, with its decision.
type Limit struct {
	Name string `json:"name,omitempty"`
	// Text describes the limit, such as "funnel: 10 per 1s, burst 20".
	Text string `json:"text"`
	// Key is the counter's key.
	Key string `json:"key"`
	// ReplacedBy is the rule that replaces the limit in this request, or "". If it is set, the fields below are empty.
	ReplacedBy string   `json:"replaced_by,omitempty"`
	Outcome    string   `json:"outcome,omitempty"`
	Fits       bool     `json:"fits"`
	Remaining  int64    `json:"remaining"`
	RetryAfter *float64 `json:"retry_after_seconds"` // as in Answer
	ResetAfter float64  `json:"reset_after_seconds"`
	Wait       float64  `json:"wait_seconds,omitempty"`
}

// Codes of a response, by Envoy's names.
const (
	OK        = "OK"
	OverLimit = "OVER_LIMIT"
)

// Question is a request to explain.
type Question struct {
	// Domain may be empty if the rules have only one.
	Domain      string
	Descriptors [][]descriptors.Entry
	// Hits is the cost of each descriptor; 0 means 1.
	Hits uint32
}

func (q *Question) descriptors() []decide.Descriptor {
	all := make([]decide.Descriptor, len(q.Descriptors))
	for i, entries := range q.Descriptors {
		all[i] = decide.Descriptor{Entries: entries, Cost: int64(max(q.Hits, 1))}
	}
	return all
}

// chooseDomain sets the domain, if it is empty, to the only domain of the rules.
func (q *Question) chooseDomain(rules *descriptors.Set) error {
	if q.Domain != "" {
		return nil
	}
	domains := rules.Domains()
	if len(domains) != 1 {
		return errors.New("domain: is missing; " +
			listed("the domains are", nearest("", domainNames(rules)), "the rules have no domain"))
	}
	q.Domain = domains[0].Name()
	return nil
}

func newReport(rules *descriptors.Set, q Question, v *decide.Verdict) *Report {
	r := &Report{Domain: q.Domain, Hits: max(q.Hits, 1), Answer: answer(v)}
	matched := make([]*descriptors.Rule, len(q.Descriptors))
	matching := make([][]descriptors.Entry, len(q.Descriptors)) // entries that rules match
	for i, entries := range q.Descriptors {
		matching[i] = slices.DeleteFunc(slices.Clone(entries), func(e descriptors.Entry) bool {
			return e.Key == decide.StartKey || e.Key == decide.HintKey
		})
		d, rule := MatchDescriptor(rules, q.Domain, matching[i])
		matched[i], d.Code = rule, code(v.Statuses[i].Over)
		r.Descriptors = append(r.Descriptors, d)
	}
	for i := range r.Descriptors {
		r.Descriptors[i].Limits = limits(i, matching[i], matched, v)
	}
	return r
}

func answer(v *decide.Verdict) Answer {
	a := Answer{Code: code(v.Denied), Wait: v.Wait.Seconds(), RetryAfter: new(float64)}
	v.Headers(func(h decide.Header) bool {
		if h.IsNumber {
			h.Text = strconv.FormatInt(h.Number, 10)
		}
		a.Headers = append(a.Headers, descriptors.Header{Name: h.Name, Value: h.Text})
		return true
	})
	if v.Failed() {
		a.StoreError = v.StoreErr.Error()
	}
	if !v.Denied {
		return a
	}
	if response := v.Response(); response != nil {
		a.Body = response.Body
	}
	wait := time.Duration(0)
	for i, l := range v.Limits {
		if v.Denies(i) {
			a.DeniedBy = append(a.DeniedBy, l.Title())
			wait = max(wait, v.Decisions[i].RetryAfter)
		}
	}
	a.RetryAfter = adminapi.Wait(wait)
	return a
}

// limits returns the limits of descriptor i's rule, with their decisions.
func limits(i int, entries []descriptors.Entry, matched []*descriptors.Rule, v *decide.Verdict) (all []Limit) {
	if matched[i] == nil {
		return nil
	}
	for _, l := range matched[i].Limits {
		shown := Limit{Name: l.Name, Text: l.String(), Key: string(l.AppendKey(nil, entries)), RetryAfter: new(float64)}
		at := hitOf(v, i, l)
		if at < 0 {
			shown.ReplacedBy = replacer(l.Name, matched)
			all = append(all, shown)
			continue
		}
		asked, d := v.Limits[at], &v.Decisions[at]
		shown.Outcome, shown.Fits, shown.Remaining = v.Outcome(at).String(), d.Allowed, d.Remaining
		shown.ResetAfter, shown.Wait = d.ResetAfter.Seconds(), d.Wait.Seconds()
		if asked.Policy.Core().Is(step.InWindows) && d.Remaining == asked.Policy.Capacity() {
			shown.ResetAfter = 0 // the window has an end, but is empty
		}
		if !d.Allowed {
			shown.RetryAfter = adminapi.Wait(d.RetryAfter)
		}
		all = append(all, shown)
	}
	return all
}

// hitOf returns the index of the hit of a limit of descriptor i, or -1 if the limit has none.
func hitOf(v *decide.Verdict, i int, l *descriptors.Limit) int {
	for first, last := v.Statuses[i].Hits(); first < last; first++ {
		if v.Limits[first].ID == l.ID {
			return first
		}
	}
	return -1
}

// replacer returns the rule that replaces limits of that name in this request.
func replacer(name string, matched []*descriptors.Rule) string {
	for _, r := range matched {
		if r == nil {
			continue
		}
		replaces := slices.Contains(r.Replaces, name)
		for _, l := range r.Limits {
			replaces = replaces || slices.Contains(l.Replaces, name)
		}
		if replaces {
			return descriptors.Located(r.Path, r.Source)
		}
	}
	return "another limit"
}

func mode(m limiter.Mode) string {
	if m == limiter.Enforce {
		return ""
	}
	return m.String()
}

func code(over bool) string {
	if over {
		return OverLimit
	}
	return OK
}

// Missing returns a text if the expectation is not met, else "". "ok" and "over" expect that code of the response;
// "none" expects that no limit applies. Any other text expects that a descriptor matches the rule with this path or
// position, or with a limit of this name.
func (r *Report) Missing(expected string) string {
	switch strings.ToLower(expected) {
	case "ok", "over":
		if want := code(strings.EqualFold(expected, "over")); r.Answer.Code != want {
			return fmt.Sprintf("expected %s, found %s", want, r.Answer.Code)
		}
		return ""
	case "none":
		for i := range r.Descriptors {
			if d := &r.Descriptors[i]; len(d.Limits) > 0 {
				return "expected no limit, found the rule " + descriptors.Located(d.Rule.Path, d.Rule.Source)
			}
		}
		return ""
	}
	return r.missingRule(expected)
}

func (r *Report) missingRule(expected string) string {
	found := make([]string, len(r.Descriptors))
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		if d.Rule == nil {
			found[i] = "none: " + d.Message
			continue
		}
		found[i] = descriptors.Located(d.Rule.Path, d.Rule.Source)
		if d.Rule.Path == expected || d.Rule.Source == expected ||
			slices.ContainsFunc(d.Limits, func(l Limit) bool { return l.Name == expected && l.ReplacedBy == "" }) {
			return ""
		}
	}
	return fmt.Sprintf("expected the rule %s, found %s", expected, strings.Join(found, " and "))
}

// Query returns q as the query of GET /explain: ?domain=..&descriptor=key=value,key=value&descriptor=..&hits=1.
func Query(q Question) url.Values {
	v := url.Values{"domain": {q.Domain}, "hits": {strconv.FormatUint(uint64(max(q.Hits, 1)), 10)}}
	for _, entries := range q.Descriptors {
		v.Add("descriptor", descriptors.FormatEntries(entries))
	}
	return v
}

// ParseQuery parses a Query. Missing hits are 1. The error has a line for each invalid part.
func ParseQuery(v url.Values) (Question, error) {
	q := Question{Domain: v.Get("domain"), Hits: 1}
	var errs []error
	if text := v.Get("hits"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n == 0 {
			errs = append(errs, fmt.Errorf("hits: must be a whole number from 1 to 4294967295, got %q", text))
		}
		q.Hits = uint32(n)
	}
	for i, text := range v["descriptor"] {
		entries, err := descriptors.ParseEntries(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("descriptor %d: %w", i+1, err))
		}
		q.Descriptors = append(q.Descriptors, entries)
	}
	if len(q.Descriptors) == 0 {
		errs = append(errs,
			errors.New("descriptor: is missing; write descriptor=key=value,key=value for each of the request's"))
	}
	return q, errors.Join(errs...)
}

// begin is the start of virtual time, when windows of every unit up to the week, and calendar windows in UTC, begin.
var begin = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// Live returns a function that explains a query of GET /explain with the active rules and the current counters. Its
// result encodes to JSON. An error wraps limiter.ErrUnavailable unless the query is invalid.
func Live(d *decide.Decider, rules func() *descriptors.Set) func(ctx context.Context, query url.Values) (any, error) {
	return func(ctx context.Context, query url.Values) (any, error) {
		q, err := ParseQuery(query)
		if err != nil {
			return nil, err
		}
		set := rules()
		if set == nil {
			return nil, errors.New("no rules are loaded yet; GET /rules shows why")
		}
		if err := q.chooseDomain(set); err != nil {
			return nil, err
		}
		request := d.NewRequest()
		request.Domain = q.Domain
		for _, descriptor := range q.descriptors() {
			request.Add(descriptor)
		}
		v, err := d.Peek(ctx, set, request)
		if _, isInvalid := errors.AsType[*decide.InvalidError](err); err != nil && !isInvalid {
			err = fmt.Errorf("%w: %w", limiter.ErrUnavailable, err)
		}
		if err != nil {
			return nil, err
		}
		r := newReport(set, q, v)
		r.Live = true
		return r, nil
	}
}

// Offline explains a question with unused counters in virtual time, so that it always returns the same report.
func Offline(ctx context.Context, rules *descriptors.Set, q Question) (*Report, error) {
	if err := q.chooseDomain(rules); err != nil {
		return nil, err
	}
	engine, err := offline.NewEngine(rules) //nolint:contextcheck // the engine ends with Close
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	v, err := engine.Decide(ctx, &offline.Request{At: begin.UnixMicro(), Domain: q.Domain, Descriptors: q.descriptors()})
	if err != nil {
		return nil, err
	}
	return newReport(rules, q, v), nil
}
