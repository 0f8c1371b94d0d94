package explain

import (
	"fmt"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/words"
)

// MatchDescriptor reports how a descriptor matches, level by level, and if no limit applies, the reason. The rule is
// the result of Domain.Match. It is not for the hot path, because its time grows with the number of rules at a level.
// It does not show values of rules with hash_values.
func MatchDescriptor(
	s *descriptors.Set, domain string, entries []descriptors.Entry,
) (Descriptor, *descriptors.Rule) {
	e := matcher{set: s, domain: s.Domain(domain), entries: entries}
	e.Levels = []Level{}
	e.Entries = append(e.Entries, entries...)
	switch {
	case e.domain == nil:
		e.miss("no rule file has the domain %s, so that its requests are not limited; %s", quotedShort(domain),
			listed("the domains are", nearest(domain, domainNames(s)), "there are no domains"))
	case len(entries) == 0:
		e.miss("the descriptor has no entries; send at least one key and value")
	default:
		e.walk()
	}
	if r := e.rule; r != nil {
		e.Rule = &Rule{
			Path: r.Path, Source: r.Source, Mode: mode(r.Mode), Description: r.Description, Owner: r.Owner,
		}
	}
	return e.Descriptor, e.rule
}

// matcher builds a Descriptor.
type matcher struct {
	Descriptor

	set     *descriptors.Set
	domain  *descriptors.Domain
	entries []descriptors.Entry
	rule    *descriptors.Rule // the rule that the last entry matches
}

// miss sets the reason why no limit applies.
func (e *matcher) miss(format string, args ...any) { e.Message = fmt.Sprintf(format, args...) }

// walk follows the entries as Match does.
func (e *matcher) walk() {
	n := &e.domain.Root
	for i, entry := range e.entries {
		if _, open := n.Next(&entry, len(e.entries)-1-i); open != nil {
			e.tooLong(entry, open)
			return
		}
		all := n.Keys[entry.Key].Matches(entry.Value)
		if len(all) == 0 {
			e.stuck(n, i)
			return
		}
		level := newLevel(entry, all[0].By, all[0].To.Rule)
		for _, other := range all[1:] {
			level.Also = append(level.Also, other.To.Rule.Source)
		}
		e.Levels = append(e.Levels, level)
		n = all[0].To
	}
	e.rule = n.Rule
	switch {
	case len(e.rule.Limits) > 0:
	case e.rule.Unlimited:
		e.miss("%s says unlimited: true", at(e.rule))
	default:
		e.miss("%s has no limit of its own; %s", at(e.rule), listed("only levels below it, whose keys are",
			nearest("", keys(n)), "write a rate_limit there"))
	}
}

// tooLong reports that the entry's value is too long to decide whether it matches the pattern.
func (e *matcher) tooLong(entry descriptors.Entry, open *descriptors.Pattern) {
	e.rule = e.domain.Match(e.entries)
	e.Levels = append(e.Levels, newLevel(entry, "too_long", e.rule))
	e.Message = fmt.Sprintf("the value has %d bytes, and its first %d bytes and its end do not show whether it "+
		"matches %s, so that the request is denied; send a shorter value, or write a pattern whose fixed text is at its "+
		"beginning or its end",
		len(entry.Value), descriptors.MaxPatternValue, at(open.To.Rule))
}

func newLevel(entry descriptors.Entry, by string, r *descriptors.Rule) Level {
	return Level{Key: entry.Key, Value: entry.Value, By: by, Rule: r.Path, Source: r.Source}
}

// stuck reports the reason why entry i matches no rule below the node.
func (e *matcher) stuck(n *descriptors.Node, i int) {
	entry := e.entries[i]
	below := "in domain " + quotedShort(e.domain.Name())
	if n.Rule != nil {
		below = "below " + at(n.Rule)
	}
	b := n.Keys[entry.Key]
	if b == nil {
		e.miss("no rule %s has the key %s; %s", below, quotedShort(entry.Key), listed("the keys there are",
			nearest(entry.Key, keys(n)), "there are no levels below, and a limit applies only where the last entry ends"))
		return
	}
	e.miss("rules %s have the key %s, but none of them matches the value %s; %s", below, quotedShort(entry.Key),
		quotedShort(entry.Value), listed("they match", nearest(entry.Value, values(b, i)),
			"their values are hashed, and not shown"))
}

// at returns a rule's path and position.
func at(r *descriptors.Rule) string { return descriptors.Located(words.Shorten(r.Path), r.Source) }

// quotedShort returns a shortened text in quotes, with escapes for invisible characters.
func quotedShort(text string) string { return fmt.Sprintf("%q", words.Shorten(text)) }
