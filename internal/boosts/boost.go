// Package boosts keeps temporary factors on limits: of a whole rule, or of single counters. They begin, are followed by
// every process on the same Redis, and end by themselves, without an edit of the rules.
package boosts

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Bounds.
const (
	// Max is the most boosts that are kept at a time.
	Max = 1000
	// MaxOfAuthor is the most that one author may have at a time.
	MaxOfAuthor = 100
	// MinFor and MaxFor bound how long a boost lasts: what is needed for longer belongs into the rules.
	MinFor = time.Second
	MaxFor = 7 * 24 * time.Hour
	// MaxFactor bounds a factor, and one over it bounds it from below.
	MaxFactor = 1000.0
	// MaxText is the longest reason, and the longest author, in bytes.
	MaxText = 500
)

// Errors of Add and Remove; others are of Redis, or say what is wrong with what was asked.
var (
	ErrNotFound = errors.New("not found")
	ErrFull     = fmt.Errorf("there are %d boosts already, the most that are kept, or %d of this author; remove one", Max,
		MaxOfAuthor)
)

// InvalidError says what is wrong with what was asked.
type InvalidError struct{ msg string }

// Error implements error.
func (e *InvalidError) Error() string { return e.msg }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }

// newBoost checks what is asked for against the rules that are live.
func newBoost(in *adminapi.BoostRequest, set *descriptors.Set, now time.Time) (*adminapi.Boost, error) {
	length, err := check(in)
	if err != nil {
		return nil, err
	}
	rule, entries, err := target(in, set)
	if err != nil {
		return nil, err
	}
	if len(rule.Limits) == 0 {
		return nil, invalid("rule %q (%s) has no limit to boost", rule.Path, rule.Source)
	}
	b := &adminapi.Boost{
		ID: strings.ToLower(rand.Text()[:10]), Domain: in.Domain, Rule: rule.Path, Factor: in.Factor,
		Reason: in.Reason, Author: in.Author,
		CreatedAt: now.UTC().Truncate(time.Microsecond), ExpiresAt: now.Add(length).UTC().Truncate(time.Millisecond),
	}
	changes := false
	for _, l := range rule.Limits {
		scaled, err := l.Scaled(in.Factor)
		if err != nil {
			return nil, invalid("%v", err)
		}
		changes = changes || scaled.Policy.Identity() != l.Policy.Identity()
		if entries != nil {
			b.Keys = append(b.Keys, string(l.AppendKey(nil, entries)))
		}
	}
	if !changes {
		return nil, invalid("factor: %g changes no limit of rule %q, whose numbers are rounded down; give a larger one, "+
			"or a smaller one",
			in.Factor, rule.Path)
	}
	return b, nil
}

// check is of the request by itself.
func check(in *adminapi.BoostRequest) (length time.Duration, err error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, invalid(format, args...)) }
	if in.Domain == "" {
		bad("domain: is missing")
	}
	if (in.Rule == "") == (in.Descriptor == "") {
		bad("rule, descriptor: give one of the two")
	}
	if f := in.Factor; math.IsNaN(f) || f < 1/MaxFactor || f > MaxFactor {
		bad("factor: must be above 0 (at least %g) and at most %g, got %g; 2 doubles a limit, 0.5 halves it", 1/MaxFactor,
			MaxFactor, f)
	}
	if length, err = words.ParseDuration(in.For); err != nil {
		bad("for: %s", err)
	} else if length < MinFor || length > MaxFor {
		bad("for: must be between %s and %s (7d), got %s; what is needed for longer belongs into the rules", MinFor,
			MaxFor, length)
	}
	for _, text := range []struct{ name, value string }{{"reason", in.Reason}, {"author", in.Author}} {
		if text.value == "" || len(text.value) > MaxText || !isPlain(text.value) {
			bad("%s: must have 1 to %d bytes of text that can be seen: no line ends, control characters or marks of direction",
				text.name, MaxText)
		}
	}
	return length, errors.Join(errs...)
}

// isPlain says whether a text is safe to be shown: a terminal obeys control characters, also those above U+007F, and
// marks of direction show a text as another.
func isPlain(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// target is the rule, and the entries if single counters of it are asked for.
func target(in *adminapi.BoostRequest, set *descriptors.Set) (*descriptors.Rule, []descriptors.Entry, error) {
	if in.Rule != "" {
		rule, err := FindRule(set, in.Domain, in.Rule)
		return rule, nil, err
	}
	return Match(set, in.Domain, in.Descriptor)
}

// Match returns the rule that a descriptor reaches, and its entries. Its error is an *InvalidError, or wraps
// ErrNotFound.
func Match(set *descriptors.Set, domain, descriptor string) (*descriptors.Rule, []descriptors.Entry, error) {
	entries, err := descriptors.ParseEntries(descriptor)
	if err != nil {
		return nil, nil, invalid("descriptor: %v", err)
	}
	d, err := findDomain(set, domain)
	if err != nil {
		return nil, nil, err
	}
	rule := d.Match(entries)
	if rule == nil {
		return nil, nil, fmt.Errorf("descriptor: no rule of domain %q matches it (%w); weir explain says why", domain,
			ErrNotFound)
	}
	return rule, entries, nil
}

// findDomain is the set's domain of that name. Its error wraps ErrNotFound and says which there are.
func findDomain(set *descriptors.Set, name string) (*descriptors.Domain, error) {
	if set == nil {
		return nil, fmt.Errorf("domain: no rules are loaded yet (%w)", ErrNotFound)
	}
	if d := set.Domain(name); d != nil {
		return d, nil
	}
	var names []string
	for _, d := range set.Domains() {
		names = append(names, fmt.Sprintf("%q", d.Name()))
	}
	return nil, fmt.Errorf("domain: there is no %q (%w); there is %s", name, ErrNotFound, some(names))
}

// FindRule returns the rule of a domain by its path. Its error wraps ErrNotFound and says which there are.
func FindRule(set *descriptors.Set, domain, path string) (*descriptors.Rule, error) {
	d, err := findDomain(set, domain)
	if err != nil {
		return nil, err
	}
	if rule := d.Rule(path); rule != nil {
		return rule, nil
	}
	var paths []string
	for _, r := range d.Rules() {
		paths = append(paths, fmt.Sprintf("%q", r.Path))
	}
	return nil, fmt.Errorf("rule: domain %q has no rule %q (%w); it has %s", domain, path, ErrNotFound, some(paths))
}

// some are the first few of what there is.
func some(all []string) string {
	const few = 10
	switch {
	case len(all) == 0:
		return "none"
	case len(all) > few:
		return fmt.Sprintf("%s and %d more: see GET /rules", strings.Join(all[:few], ", "), len(all)-few)
	default:
		return strings.Join(all, ", ")
	}
}

// sorted has the oldest first: what is newer goes before.
func sorted(all []adminapi.Boost) []adminapi.Boost {
	slices.SortFunc(all, func(a, b adminapi.Boost) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// unexpired are those that are still in force.
func unexpired(all []adminapi.Boost, now time.Time) []adminapi.Boost {
	return slices.DeleteFunc(slices.Clone(all), func(b adminapi.Boost) bool { return !b.ExpiresAt.After(now) })
}
