package descriptors

import (
	"fmt"
	"time"

	"github.com/gaissmai/bart"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Node is what a request's entries so far lead to: their rule, and where the next entry leads.
type Node struct {
	Rule *Rule // nil at the root of a domain
	Keys map[string]*Branch
}

// Branch is where an entry of one key leads: by its exact value, else by the first pattern, be it one with *, a
// regex or a block of addresses, else by the key.
type Branch struct {
	*matchers

	Values map[string]*Node // by the exact value
	Any    *Node            // by the key alone, nil if nowhere
}

// matchers are a branch's patterns of all kinds. Few branches have some: the others share noMatchers, for there may
// be a hundred thousand of them.
type matchers struct {
	index  *affixes              // of patterns with * and regexes; nil if there are none
	blocks *bart.Table[*Pattern] // of addresses; nil if there are none
	every  *Pattern              // the first one that matches every value

	all       []*Pattern       // patterns with * and regexes, in file order
	positions []written        // where these are, until the branch is finished
	order     int              // how many there are, with blocks
	by        map[string]*Node // as a shared counter's key shows them
}

var noMatchers matchers

// written is where a descriptor and its value are.
type written struct{ descriptor, value Position }

// Match returns the rule that the last entry reaches, nil if there is none; a nil Domain has none. Entries are matched
// one by one: the exact value goes first, then the patterns in file order (of several blocks that hold an address, the
// longest), then the key alone, and a choice is never taken back. It allocates nothing (but for the error of what looks
// like an address and is none).
//
// The time that it takes does not grow with the number of rules, and has a bound that holds for any value and for any
// rules that compile: patterns and regexes read at most MaxPatternValue bytes of a value. Where that does not decide
// which of them comes first, and one that may would deny something, Match returns the domain's rule for values that
// are too long, which denies: see Rule.IsTooLong.
func (d *Domain) Match(entries []Entry) *Rule {
	if d == nil {
		return nil
	}
	n := &d.Root
	for i := range entries {
		var open *Pattern
		if n, open = n.Next(&entries[i], len(entries)-1-i); n == nil {
			if open != nil {
				return d.long
			}
			return nil
		}
	}
	return n.Rule
}

// Next returns where the entry leads, with left more entries behind it. If that cannot be decided, it returns nil and
// the first pattern that the value may match.
func (n *Node) Next(e *Entry, left int) (to *Node, open *Pattern) {
	b := n.Keys[e.Key]
	if b == nil {
		return nil, nil
	}
	if to := b.Values[e.Value]; to != nil {
		return to, nil
	}
	if b.order == 0 {
		return b.Any, nil
	}
	best, open := b.find(e.Value, left)
	switch {
	case open != nil:
		return nil, open
	case best != nil:
		return best.To, nil
	default:
		return b.Any, nil
	}
}

// find is the first pattern that the value matches, or if that cannot be decided, the first that it may match.
func (m *matchers) find(value string, left int) (best, open *Pattern) {
	s := search{best: m.block(value)}
	if m.index != nil {
		s.begin(value, left)
		m.index.look(&s, value, toDecide)
		if s.isOpen() {
			return nil, s.open
		}
	}
	return s.best, nil
}

// first is the first pattern with * that the value matches.
func (m *matchers) firstStar(value string) *Pattern {
	if m.index == nil {
		return nil
	}
	s := search{stars: true}
	s.begin(value, 0)
	m.index.look(&s, value, toDecide)
	return s.best
}

// tooLongPath is the path of the rule for values that are too long.
const tooLongPath = "(value too long to match)"

// tooLongKey stands for the entries in the key of that rule's only counter. No entry's key has a raw *.
const tooLongKey = "|*#too_long="

// newLongRule makes a domain's rule for values that are too long to decide which pattern they match: it denies, also
// while the store does not answer, since a client could else avoid any pattern's limit by a long value.
func newLongRule(domain string, process *Process) (*Rule, error) {
	params := limiter.Params{Algorithm: limiter.FixedWindow, DenyAll: true, Window: time.Minute}
	policy, err := limiter.NewPolicy(params)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tooLongPath, err)
	}
	r := &Rule{Domain: domain, Path: tooLongPath, process: process, tooLong: true, Mode: process.mode(false, false)}
	l := &Limit{
		ID: -1, Policy: policy, Unit: Minute, UnitMultiplier: 1, OnStoreFailure: Deny, Rule: r, params: &params,
		keyStart: newCounter(&params, &Placement{}).keyStart(domain) + tooLongKey,
	}
	r.Limits = []*Limit{l}
	return r, nil
}

// IsTooLong reports whether the rule is the one that Domain.Match returns for a value that is longer than
// MaxPatternValue, if what Weir reads of the value does not decide which pattern it matches, and one that it may
// match would deny something. The rule has one limit, of 0 requests a minute.
func (r *Rule) IsTooLong() bool { return r.tooLong }
