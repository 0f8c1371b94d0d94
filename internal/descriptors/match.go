package descriptors

import (
	"fmt"
	"time"

	"github.com/gaissmai/bart"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Node is a node of a domain's tree, which a request's first entries lead to.
type Node struct {
	Rule *Rule // nil at the root
	Keys map[string]*Branch
}

// Branch has the child nodes for one key. An entry leads to the node of its exact value, else of the first matching
// pattern (one with *, regex or block of addresses), else of the key alone.
type Branch struct {
	*matchers

	Values map[string]*Node // by exact value
	Any    *Node            // for all other values; may be nil
}

// matchers has a branch's patterns of all kinds. Branches without patterns share noMatchers to save memory.
type matchers struct {
	index  *affixes              // patterns with * and regexes; nil if there are none
	blocks *bart.Table[*Pattern] // blocks of addresses; nil if there are none
	every  *Pattern              // first pattern that matches every value

	all       []*Pattern       // patterns with * and regexes, in file order
	positions []written        // positions of all; nil once the branch is finished
	order     int              // number of patterns, including blocks
	by        map[string]*Node // nodes of values, blocks and regexes by their text
}

var noMatchers matchers

type written struct{ descriptor, value Position }

// Match returns the rule to which the last entry leads, nil if there is none or d is nil. It matches the entries in
// order: each by its exact value, else by the first pattern in file order (of several blocks with an address, by the
// longest), else by its key alone. It does not backtrack, and allocates only for invalid addresses.
//
// Its time does not depend on the number of rules, and is bounded for any value and any rules that compile, because
// patterns and regexes read at most MaxPatternValue bytes of a value. If these bytes do not decide which pattern
// matches first, and one of the possible patterns leads to a limit that denies, Match returns the domain's rule for too
// long values, which denies the request: see Rule.IsTooLong.
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

// Next returns the node to which e leads. left is the number of entries after e. If the part of the value that Weir
// reads does not decide, open is the first possible pattern.
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

// find returns the first pattern that matches the value or, if that cannot be decided, the first that may match.
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

// firstStar returns the first pattern with * that matches the value.
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

// tooLongKey replaces the entries in the key of that rule's only counter. No entry's key has an unescaped *.
const tooLongKey = "|*#too_long="

// newLongRule returns a domain's rule for values that are too long to decide which pattern they match. It denies even
// while the store fails; otherwise a client could evade any pattern's limit with a long value.
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

// IsTooLong reports whether r is the rule that Domain.Match returns for a value longer than MaxPatternValue, if the
// bytes that Weir reads do not decide which pattern matches, and a possible pattern leads to a limit that denies. The
// rule has one limit, of 0 requests per minute.
func (r *Rule) IsTooLong() bool { return r.tooLong }
