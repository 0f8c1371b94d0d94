// Package explain answers "it does not limit" and "it limits, and I cannot see why": which rules a request's
// descriptors match, where the walk stops, which counters that means, and what would be answered. It
// decides nothing itself: internal/descriptors matches, and internal/decide answers.
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

// Report is the answer, as GET /explain and `explain --format json` show it.
type Report struct {
	Domain string `json:"domain"`
	// Hits is what each descriptor costs.
	Hits uint32 `json:"hits"`
	// Live says that the counters of a running process were looked at; else they are fresh ones.
	Live        bool         `json:"live"`
	Answer      Answer       `json:"answer"`
	Descriptors []Descriptor `json:"descriptors"`
}

// Answer is what the request as a whole would be answered.
type Answer struct {
	Code string `json:"code"` // OK or OVER_LIMIT
	// DeniedBy are the limits that deny it.
	DeniedBy []string `json:"denied_by,omitempty"`
	// RetryAfter is the Retry-After: 0 if the request is not denied, nil (null in JSON) if no wait helps.
	RetryAfter *float64 `json:"retry_after_seconds"`
	// Wait is how long the answer would be delayed.
	Wait    float64              `json:"wait_seconds,omitempty"`
	Headers []descriptors.Header `json:"headers,omitempty"`
	Body    string               `json:"body,omitempty"`
	// StoreError is why the store did not answer, so that each limit's on_store_failure did.
	StoreError string `json:"store_error,omitempty"`
}

// Descriptor is one descriptor of the request.
type Descriptor struct {
	Entries []descriptors.Entry `json:"entries"`
	Code    string              `json:"code"`
	// Levels are the entries that led to a rule, and which.
	Levels []Level `json:"levels"`
	// Rule is what the last entry reaches. Nil if it reaches none.
	Rule *Rule `json:"rule,omitempty"`
	// Message says why no limit applies: where the walk stops, and up to three keys or values of that level, the likest
	// first. It also says which pattern a value is too long for.
	Message string  `json:"message,omitempty"`
	Limits  []Limit `json:"limits,omitempty"`
}

// Level is an entry that led to a rule.
type Level struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	// By says what of the rule matches: value (one of them exactly), pattern, cidr, regex, or key for a rule without a
	// value; too_long if the value is too long to decide that.
	By     string `json:"by"`
	Rule   string `json:"rule"`
	Source string `json:"source"`
	// Also are the positions of rules that match as well, but come after it.
	Also []string `json:"also,omitempty"`
}

// Rule is a rule, for people.
type Rule struct {
	Path        string `json:"path"`
	Source      string `json:"source"`
	Mode        string `json:"mode,omitempty"` // shadow or quota
	Description string `json:"description,omitempty"`
	Owner       string `json:"owner,omitempty"`
}

// Limit is a limit of the rule, and what it says.
type Limit struct {
	Name string `json:"name,omitempty"`
	// Text is the limit in words: "funnel: 10 per 1s, burst 20".
	Text string `json:"text"`
	// Key is the counter's.
	Key string `json:"key"`
	// ReplacedBy names what replaces the limit in this request: the rest is then empty.
	ReplacedBy string   `json:"replaced_by,omitempty"`
	Outcome    string   `json:"outcome,omitempty"`
	Fits       bool     `json:"fits"`
	Remaining  int64    `json:"remaining"`
	RetryAfter *float64 `json:"retry_after_seconds"` // as in Answer
	ResetAfter float64  `json:"reset_after_seconds"`
	Wait       float64  `json:"wait_seconds,omitempty"`
}

// Codes of an answer, as Envoy has them.
const (
	OK        = "OK"
	OverLimit = "OVER_LIMIT"
)

// Question is a request as people write it.
type Question struct {
	// Domain may be empty if the rules have only one.
	Domain      string
	Descriptors [][]descriptors.Entry
	// Hits is the cost of each descriptor; 0 is 1.
	Hits uint32
}

func (q *Question) descriptors() []decide.Descriptor {
	all := make([]decide.Descriptor, len(q.Descriptors))
	for i, entries := range q.Descriptors {
		all[i] = decide.Descriptor{Entries: entries, Cost: int64(max(q.Hits, 1))}
	}
	return all
}

// chooseDomain names the domain that the question leaves out: the rules' only one.
func (q *Question) chooseDomain(rules *descriptors.Set) error {
	if q.Domain != "" {
		return nil
	}
	domains := rules.Domains()
	if len(domains) != 1 {
		return errors.New("domain: is missing; " +
			listed("the domains are", nearest("", domainNames(rules)), "the rules have no domain to take instead"))
	}
	q.Domain = domains[0].Name()
	return nil
}

func newReport(rules *descriptors.Set, q Question, v *decide.Verdict) *Report {
	r := &Report{Domain: q.Domain, Hits: max(q.Hits, 1), Answer: answer(v)}
	matched := make([]*descriptors.Rule, len(q.Descriptors))
	for i, entries := range q.Descriptors {
		d, rule := MatchDescriptor(rules, q.Domain, entries)
		matched[i], d.Code = rule, code(v.Statuses[i].Over)
		r.Descriptors = append(r.Descriptors, d)
	}
	for i := range r.Descriptors {
		r.Descriptors[i].Limits = limits(i, q.Descriptors[i], matched, v)
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
			a.DeniedBy = append(a.DeniedBy, title(l))
			wait = max(wait, v.Decisions[i].RetryAfter)
		}
	}
	a.RetryAfter = adminapi.Wait(wait)
	return a
}

// limits are those of descriptor i's rule, with what each of them says.
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
			shown.ResetAfter = 0 // the window ends some time, and there is nothing in it
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

// replacer is the rule that replaces limits of that name in this request.
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
			return located(r.Path, r.Source)
		}
	}
	return "another limit"
}

// title names a limit and its position.
func title(l *descriptors.Limit) string {
	if l.Name != "" {
		return located(l.Rule.Path+": "+l.Name, l.Rule.Source)
	}
	return located(l.Rule.Path, l.Rule.Source)
}

// located is a rule's path and its position, which what denies too long values does not have.
func located(path, source string) string {
	if source == "" {
		return path
	}
	return path + " (" + source + ")"
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

// Missing says what was found instead of an expectation, empty if it was met: ok and over are the code of the
// answer, none says that no limit applies to any descriptor, and anything else is a rule that one of them
// reaches, by its path, its position, or the name of one of its limits.
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
				return "expected no limit, found the rule " + located(d.Rule.Path, d.Rule.Source)
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
		found[i] = located(d.Rule.Path, d.Rule.Source)
		if d.Rule.Path == expected || d.Rule.Source == expected ||
			slices.ContainsFunc(d.Limits, func(l Limit) bool { return l.Name == expected && l.ReplacedBy == "" }) {
			return ""
		}
	}
	return fmt.Sprintf("expected the rule %s, found %s", expected, strings.Join(found, " and "))
}

// Query is the question as GET /explain takes it: ?domain=..&descriptor=key=value,key=value&descriptor=..&hits=1.
func Query(q Question) url.Values {
	v := url.Values{"domain": {q.Domain}, "hits": {strconv.FormatUint(uint64(max(q.Hits, 1)), 10)}}
	for _, entries := range q.Descriptors {
		v.Add("descriptor", descriptors.FormatEntries(entries))
	}
	return v
}

// ParseQuery reads what Query writes. Hits are 1 if left out. The error says all that is wrong.
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

// begin is when virtual time begins: with a window of every unit up to the week, and of the calendar in UTC.
var begin = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// Live returns the answer of GET /explain by the live rules and counters, as something for JSON. Its error says what is
// wrong with the question.
func Live(d *decide.Decider, rules func() *descriptors.Set) func(ctx context.Context, query url.Values) (any, error) {
	return func(ctx context.Context, query url.Values) (any, error) {
		q, err := ParseQuery(query)
		if err != nil {
			return nil, err
		}
		set := rules()
		if set == nil {
			return nil, errors.New("no rules are loaded yet; GET /rules says what is wrong with the files")
		}
		if err := q.chooseDomain(set); err != nil {
			return nil, err
		}
		request := d.NewRequest()
		request.Domain = q.Domain
		for _, descriptor := range q.descriptors() {
			request.Add(descriptor)
		}
		v, err := d.Look(ctx, set, request)
		if err != nil {
			return nil, err
		}
		r := newReport(set, q, v)
		r.Live = true
		return r, nil
	}
}

// Offline explains a question on fresh counters in virtual time, so that the same question always has the same answer.
func Offline(ctx context.Context, rules *descriptors.Set, q Question) (*Report, error) {
	if err := q.chooseDomain(rules); err != nil {
		return nil, err
	}
	engine, err := offline.NewEngine(rules) //nolint:contextcheck // it ends with Close
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
