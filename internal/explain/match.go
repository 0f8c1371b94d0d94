package explain

import (
	"fmt"
	"iter"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Reason is why no limit applies to a descriptor.
type Reason string

// The reasons. The empty one says that limits apply.
const (
	NoEntries     Reason = "no_entries"     // the descriptor is empty
	UnknownDomain Reason = "unknown_domain" // no rule file has the domain
	UnknownKey    Reason = "unknown_key"    // no rule at this level has the entry's key
	UnknownValue  Reason = "unknown_value"  // rules at this level have the key, but none the value
	TooDeep       Reason = "too_deep"       // the rule that the entries before it reach has no levels below it
	NoLimit       Reason = "no_limit"       // the rule that is reached has no limit of its own
	Unlimited     Reason = "unlimited"      // the rule that is reached says so
)

// Matched reports how a descriptor is matched.
type Matched struct {
	Domain  string
	Entries []descriptors.Entry
	// Levels are the entries that led somewhere, and where.
	Levels []MatchedLevel
	// Rule is what Domain.Match returns: nil if the entries reach none.
	Rule *descriptors.Rule
	// Reason is why no limit applies, Message says it in words; both are empty if limits do.
	Reason  Reason
	Message string
	// Near are what may have been meant where no limit applies, the likeliest first: a few, however many rules
	// there are.
	Near []NearMiss
}

// MatchedLevel is an entry that leads from one rule to the next.
type MatchedLevel struct {
	Entry descriptors.Entry
	// By says what of the rule matches: value (one of them exactly), pattern, cidr, regex, or key for a rule
	// without a value; too_long if the value is too long to decide that.
	By string
	// Rule is what is reached.
	Rule *descriptors.Rule
	// Also are the rules that match as well, but come after it.
	Also []*descriptors.Rule
}

// NearMiss is a rule that a descriptor misses, or something else that is near.
type NearMiss struct {
	// Kind is a word for programs: extra_entry, order, missing_entry, precedence, deeper, key_case, key_space, key_near,
	// key_other, value_case, value_space, value_near, value_other, pattern, regex, cidr, domain_case, domain_space,
	// domain_near, domain_other.
	Kind string
	// Rule is nil where it is about a domain or a key.
	Rule *descriptors.Rule
	// Message says why it does not match, and what to write instead.
	Message string
}

// Bounds of an explanation.
const (
	maxNear  = 6    // what may have been meant
	maxTries = 4096 // other descriptors that are matched to find that
)

// MatchDescriptor reports how a request's descriptor is matched, level by level, and if no limit applies to it, why,
// and what is near. The time it takes grows with the number of rules at one level, and not with their product: it is
// for people, not for requests. It does not show values of rules with hash_values.
func MatchDescriptor(s *descriptors.Set, domain string, entries []descriptors.Entry) *Matched {
	x := &Matched{Domain: domain, Entries: entries}
	d := s.Domain(domain)
	e := matcher{Matched: x, set: s, domain: d}
	switch {
	case d == nil:
		x.miss(UnknownDomain, "no rule file has the domain %s, so that nothing is limited in it", quotedShort(domain))
		e.nearDomains()
	case len(entries) == 0:
		x.miss(NoEntries, "the descriptor has no entries; send at least one key and value")
	default:
		e.walk()
	}
	x.Near = x.Near[:min(len(x.Near), maxNear)]
	return x
}

func (x *Matched) miss(why Reason, format string, args ...any) {
	x.Reason, x.Message = why, fmt.Sprintf(format, args...)
}

// matcher makes a Matched.
type matcher struct {
	*Matched
	set    *descriptors.Set
	domain *descriptors.Domain
	others [][]descriptors.Match // of each level: what matches as well, but comes later
	tries  int                   // other descriptors that were matched so far
}

// walk follows the entries as Match does.
func (e *matcher) walk() {
	n := e.domain.Root()
	for i, entry := range e.Entries {
		if _, open := n.Next(&entry, len(e.Entries)-1-i); open != nil {
			e.tooLong(entry, open)
			return
		}
		all := matches(n, entry)
		if len(all) == 0 {
			e.stuck(n, i)
			return
		}
		first, others := all[0], all[1:]
		level := MatchedLevel{Entry: entry, By: first.By, Rule: first.To.Rule()}
		for _, other := range others {
			level.Also = append(level.Also, other.To.Rule())
		}
		e.Levels = append(e.Levels, level)
		e.others = append(e.others, others)
		n = first.To
	}
	e.Rule = n.Rule()
	switch {
	case len(e.Rule.Limits) > 0:
	case e.Rule.Unlimited:
		e.miss(Unlimited, "%s says unlimited: true", at(e.Rule))
	case hasLevels(n):
		e.miss(NoLimit, "%s has no limit of its own, only levels below it", at(e.Rule))
		e.nearPrecedence()
		e.nearDeeper(n)
	default:
		e.miss(NoLimit,
			"%s has no limit: the descriptor is known, and nothing limits it; write a rate_limit there", at(e.Rule))
		e.nearPrecedence()
	}
}

// tooLong says that the entry's value is too long to decide whether it matches the pattern.
func (e *matcher) tooLong(entry descriptors.Entry, open *descriptors.Pattern) {
	e.Rule = e.domain.Match(e.Entries)
	e.Levels = append(e.Levels, MatchedLevel{Entry: entry, By: "too_long", Rule: e.Rule})
	e.Near = append(e.Near, NearMiss{Kind: "too_long", Rule: open.Rule(), Message: fmt.Sprintf(
		"the value has %d bytes, and its first %d and its end do not decide whether it matches %s, so that the request is "+
			"denied; "+
			"send a shorter value, or write a pattern that its beginning or its end decides",
		len(entry.Value), descriptors.MaxPatternValue, at(open.Rule()))})
}

// stuck says why entry i leads nowhere from the node.
func (e *matcher) stuck(n *descriptors.Node, i int) {
	entry := e.Entries[i]
	e.nearPrecedence()
	below := "in domain " + quotedShort(e.Domain)
	if n.Rule() != nil {
		below = "below " + at(n.Rule())
	}
	switch b := n.Branch(entry.Key); {
	case !hasLevels(n) && n.Rule() == nil:
		e.miss(TooDeep, "domain %s has no rules", quotedShort(e.Domain))
	case !hasLevels(n):
		e.miss(TooDeep,
			"the descriptor goes on with %s, but %s has no levels below it; a limit applies only where the last entry ends",
			shownEntry(entry), at(n.Rule()))
		e.nearOtherEntries()
	case b == nil:
		e.miss(UnknownKey, "no rule %s has the key %s", below, quotedShort(entry.Key))
		e.nearKeys(n, i)
	default:
		e.miss(UnknownValue,
			"rules %s have the key %s, but none of them matches the value %s", below,
			quotedShort(entry.Key), quotedShort(entry.Value))
		e.nearValues(b, i)
		e.nearOtherEntries()
	}
}

// matches is all that the entry matches below the node, as Branch.Matches has it.
func matches(n *descriptors.Node, entry descriptors.Entry) []descriptors.Match {
	b := n.Branch(entry.Key)
	if b == nil {
		return nil
	}
	return b.Matches(entry.Value)
}

// match is Domain.Match from this node on, nil also of a value that is too long.
func match(n *descriptors.Node, entries []descriptors.Entry) *descriptors.Rule {
	for i := range entries {
		if n, _ = n.Next(&entries[i], len(entries)-1-i); n == nil {
			return nil
		}
	}
	return n.Rule()
}

func hasLevels(n *descriptors.Node) bool {
	for range n.Keys() { // Branches sorts them all
		return true
	}
	return false
}

func hasSome[K, V any](all iter.Seq2[K, V]) bool {
	for range all {
		return true
	}
	return false
}

// at names a rule and its place.
func at(r *descriptors.Rule) string { return descriptors.Shorten(r.Path) + " (" + r.Source + ")" }

// quotedShort shows a text of a request, with what cannot be seen.
func quotedShort(text string) string { return fmt.Sprintf("%q", descriptors.Shorten(text)) }

// shownEntry is an entry as commands take it, quoted where that is needed.
func shownEntry(e descriptors.Entry) string {
	text := descriptors.Shorten(e.Key) + "=" + descriptors.Shorten(e.Value)
	if strings.ContainsAny(text, " \t\"") {
		return quotedShort(text)
	}
	return text
}
