// Package shield makes Envoy's local rate limits of Weir's rules: a first line that a flood meets in Envoy, before it
// asks Weir.
//
// Each descriptor of the filter has a token bucket that holds as many tokens as the rule ever admits in its window, and
// gets as many in each window. A sequence of requests that Weir admits has at most Bound requests in any window, so it
// never empties the bucket: the shield denies nothing that Weir would admit, and lets a flood through at no more than
// Bound requests a window for each counter and Envoy.
package shield

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of what Envoy gets to read: the values of one key that get descriptors of their own, and all descriptors.
const (
	maxValues      = 1000
	maxDescriptors = 10_000
)

// minInterval is the shortest fill_interval that Envoy takes. All are multiples of it, as Envoy wants.
const minInterval = 50 * time.Millisecond

// shortestMonth is the shortest window of a calendar of months, whose policies say 30 days. A window of a calendar with
// a time zone may be shorter, too: the day on which summer time begins.
const shortestMonth = 28 * 24 * time.Hour

// Bucket is Envoy's token bucket. Fill tokens come in each Interval, evenly. The zero Bucket limits nothing.
type Bucket struct {
	Max, Fill uint32
	Interval  time.Duration
}

func (b Bucket) isLimiting() bool { return b.Interval > 0 }

func (b Bucket) rate() float64 { return float64(b.Fill) / b.Interval.Seconds() }

// Descriptor is one of the filter's descriptors.
type Descriptor struct {
	Entries []descriptors.Entry // an empty value stands for any
	Bucket  Bucket
	Rule    *descriptors.Rule
}

func (d *Descriptor) isExact() bool {
	return !slices.ContainsFunc(d.Entries, func(e descriptors.Entry) bool { return e.Value == "" })
}

// LeftOut is a rule that the shield cannot hold, and why.
type LeftOut struct {
	Rule *descriptors.Rule
	Why  string
}

// Shield is what the filter holds, and what it leaves to Weir.
type Shield struct {
	Descriptors []Descriptor
	LeftOut     []LeftOut
}

// Of returns the shield of a domain's rules. The error says that they name too many values for Envoy's configuration.
func Of(set *descriptors.Set, domain *descriptors.Domain) (*Shield, error) {
	b := builder{replaced: replaced(set), root: domain.Root(), left: map[*descriptors.Rule]bool{}}
	b.walk(domain.Root(), nil, true)
	if len(b.candidates) > maxDescriptors {
		return nil, fmt.Errorf("the rules name %d combinations of values, and Envoy reads its configuration as a whole: "+
			"a shield has at most %d; name fewer, or leave the shield to rules without values",
			len(b.candidates), maxDescriptors)
	}
	return b.shield(), nil
}

// builder collects candidates, one for each rule of whole values and keys alone.
type builder struct {
	replaced   map[string]bool
	root       *descriptors.Node
	candidates []candidate
	leftOut    []LeftOut
	left       map[*descriptors.Rule]bool // the rules of leftOut
}

type candidate struct {
	entries []descriptors.Entry
	rule    *descriptors.Rule
	bucket  Bucket // zero if the rule admits everything
}

// replaced has the names of limits that another limit of the same request may drop: the shield must not hold them.
func replaced(set *descriptors.Set) map[string]bool {
	names := map[string]bool{}
	add := func(replaces []string) {
		for _, name := range replaces {
			names[name] = true
		}
	}
	for _, d := range set.Domains() {
		for _, r := range d.Rules() {
			add(r.Replaces)
			for _, l := range r.Limits {
				add(l.Replaces)
			}
		}
	}
	return names
}

// walk visits the rules below a node that Envoy can name: by whole values, or by the key alone.
func (b *builder) walk(n *descriptors.Node, path []descriptors.Entry, exact bool) {
	for key, branch := range n.Branches() {
		named := map[*descriptors.Node]bool{branch.Any(): true}
		for value, to := range sortedValues(branch) {
			named[to] = true
			if hasNamed(branch) {
				b.visit(to, append(slices.Clone(path), descriptors.Entry{Key: key, Value: value}), exact)
			} else {
				b.leave(to, "its key has more than 1,000 values")
			}
		}
		for _, to := range branch.Nodes() {
			if !named[to] {
				b.leave(to, "it matches values by a pattern, regex or block of addresses")
			}
		}
		if to := branch.Any(); to != nil {
			b.visit(to, append(slices.Clone(path), descriptors.Entry{Key: key}), false)
		}
	}
}

func (b *builder) visit(n *descriptors.Node, entries []descriptors.Entry, exact bool) {
	bucket, why := b.bucket(n.Rule())
	if bucket.isLimiting() || exact {
		b.candidates = append(b.candidates, candidate{entries, n.Rule(), bucket})
	}
	if why != "" {
		b.leaveRule(n.Rule(), why)
	}
	b.walk(n, entries, exact)
}

// leave leaves out the rules of a node and below it.
func (b *builder) leave(n *descriptors.Node, why string) {
	b.leaveRule(n.Rule(), why)
	for _, branch := range n.Branches() {
		for _, to := range branch.Nodes() {
			b.leave(to, why)
		}
	}
}

// leaveRule leaves out a rule that limits something; a rule of several values stands once.
func (b *builder) leaveRule(r *descriptors.Rule, why string) {
	if len(r.Limits) > 0 && !b.left[r] {
		b.left[r] = true
		b.leftOut = append(b.leftOut, LeftOut{r, why})
	}
}

// bucket returns the bucket of the rule's limit that stops a flood first, and else why it has none.
func (b *builder) bucket(r *descriptors.Rule) (best Bucket, why string) {
	if r.Mode != limiter.Enforce {
		return best, "shadow_mode or quota_mode: it denies nothing"
	}
	for _, l := range r.Limits {
		bucket, reason := b.limit(l)
		if reason != "" {
			why = reason
			continue
		}
		if !best.isLimiting() || cmp.Or(cmp.Compare(bucket.Max, best.Max), cmp.Compare(bucket.rate(), best.rate())) < 0 {
			best = bucket
		}
	}
	if best.isLimiting() {
		why = ""
	}
	return best, why
}

func (b *builder) limit(l *descriptors.Limit) (Bucket, string) {
	p := l.Policy
	switch {
	case b.replaced[l.Name]:
		return Bucket{}, "another rule replaces its limit"
	case p.Algorithm() == limiter.Concurrency:
		return Bucket{}, "it limits requests in flight, not a rate"
	}
	bound := p.Bound(1)
	if p.OnWallClock() && (p.Params().TimeZone != nil || p.Window() >= shortestMonth) {
		bound += p.Limit()
	}
	// Delayed requests pass in the windows behind that in which they come.
	bound *= 1 + int64((p.MaxWait()+p.Window()-1)/p.Window())
	times := int64(minInterval / gcd(minInterval, p.Window()))
	if bound*times > math.MaxUint32 {
		return Bucket{}, "it is too large for Envoy's token bucket"
	}
	if bound == 0 {
		return Bucket{}, "it denies everything, which takes Weir no effort"
	}
	//nolint:gosec // checked above
	return Bucket{Max: uint32(bound), Fill: uint32(bound * times), Interval: p.Window() * time.Duration(times)}, ""
}

// shield decides about the candidates. Those of whole values hold what their rule says. One with an entry of any value
// also meets requests that other rules match: it holds the loosest of their limits, and is left out if one has none.
func (b *builder) shield() *Shield {
	s := &Shield{LeftOut: b.leftOut}
	needed := map[string]bool{}
	for _, c := range b.candidates {
		d := Descriptor{Entries: c.entries, Rule: c.rule}
		if d.isExact() || !c.bucket.isLimiting() {
			continue
		}
		bucket, exact := b.cover(c.entries)
		if !bucket.isLimiting() {
			s.LeftOut = append(s.LeftOut, LeftOut{c.rule, "it shares its key with rules that admit more, and by patterns"})
			continue
		}
		d.Bucket = bucket
		for _, entries := range exact {
			needed[descriptors.FormatEntries(entries)] = true
		}
		s.Descriptors = append(s.Descriptors, d)
	}
	for _, c := range b.candidates {
		d := Descriptor{Entries: c.entries, Rule: c.rule, Bucket: c.bucket}
		if d.isExact() && (c.bucket.isLimiting() || needed[descriptors.FormatEntries(c.entries)]) {
			s.Descriptors = append(s.Descriptors, d)
		}
	}
	slices.SortStableFunc(s.Descriptors, func(x, y Descriptor) int {
		return cmp.Compare(line(x.Rule.Source), line(y.Rule.Source))
	})
	return s
}

// line makes "file:7" and "file:12" compare as people do.
func line(source string) string {
	file, number, _ := strings.Cut(source, ":")
	return file + ":" + strings.Repeat("0", max(0, 9-len(number))) + number
}

// reached is a node that a request may be at after some entries.
type reached struct {
	node  *descriptors.Node
	path  []descriptors.Entry
	exact bool
}

// cover follows the entries, one at least of any value, through all rules. It returns the loosest bucket that a request
// may meet, the zero one if it may meet no limit, and the descriptors of whole values, which Envoy prefers.
func (b *builder) cover(entries []descriptors.Entry) (bucket Bucket, exact [][]descriptors.Entry) {
	frontier := []reached{{node: b.root, exact: true}}
	for _, e := range entries {
		var next []reached
		for _, at := range frontier {
			to := at.next(e)
			if next = append(next, to...); len(to) == 0 || len(next) > maxDescriptors {
				return Bucket{}, nil
			}
		}
		frontier = next
	}
	for _, at := range frontier {
		if at.exact {
			exact = append(exact, at.path)
			continue
		}
		other, _ := b.bucket(at.node.Rule())
		if !other.isLimiting() {
			return Bucket{}, nil
		}
		bucket = loosest(bucket, other)
	}
	return bucket, exact
}

// next returns where an entry may lead, nothing if it may also lead to no rule. An empty value is any.
func (at reached) next(e descriptors.Entry) (all []reached) {
	branch := at.node.Branch(e.Key)
	switch {
	case branch == nil:
		return nil
	case e.Value != "":
		matches := branch.Matches(e.Value)
		if len(matches) == 0 {
			return nil
		}
		return []reached{at.to(matches[0].To, e, matches[0].By == "value" && hasNamed(branch))}
	case branch.Any() == nil:
		return nil
	}
	var named []*descriptors.Node
	if hasNamed(branch) {
		for value, to := range sortedValues(branch) {
			named = append(named, to)
			all = append(all, at.to(to, descriptors.Entry{Key: e.Key, Value: value}, true))
		}
	}
	for _, to := range branch.Nodes() {
		if !slices.Contains(named, to) {
			all = append(all, at.to(to, e, false))
		}
	}
	return all
}

func (at reached) to(n *descriptors.Node, e descriptors.Entry, exact bool) reached {
	return reached{n, append(slices.Clone(at.path), e), at.exact && exact}
}

// hasNamed reports whether the branch's values get descriptors of their own.
func hasNamed(b *descriptors.Branch) bool { return b.Len() <= maxValues }

// sortedValues are Branch.Values in their order.
func sortedValues(b *descriptors.Branch) iter.Seq2[string, *descriptors.Node] {
	to := maps.Collect(b.Values())
	return func(yield func(string, *descriptors.Node) bool) {
		for _, v := range slices.Sorted(maps.Keys(to)) {
			if !yield(v, to[v]) {
				return
			}
		}
	}
}

// loosest returns a bucket that never has fewer tokens than either.
func loosest(a, b Bucket) Bucket {
	if !a.isLimiting() {
		return b
	}
	faster := a
	if b.rate() > a.rate() {
		faster = b
	}
	return Bucket{Max: max(a.Max, b.Max), Fill: faster.Fill, Interval: faster.Interval}
}

func gcd(a, b time.Duration) time.Duration {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
