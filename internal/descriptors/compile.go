package descriptors

import (
	"cmp"
	"slices"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// MaxPathText is the maximum length in bytes of all rules' paths, which can be very long even in a small file.
const MaxPathText = 128 << 20

// parent is the node to which descriptors are added.
type parent struct {
	*Node
	domain *domain
}

// above returns the parent's rule, or an empty rule at the root.
func (to *parent) above() *Rule { return cmp.Or(to.Rule, &noRule) }

var noRule Rule

// descriptor adds the rules of d and of the descriptors below it. It returns the levels at which one of them denies.
func (c *Builder) descriptor(to parent, d *Descriptor) (enforced levels) {
	if c.Rest() != nil {
		return 0
	}
	c.enter(d, to.domain.name, to.above().Path)
	c.checkDescriptor(d)
	if d.Key == "" {
		c.checkLimits(d)
		return 0
	}
	if c.lenient(d.At) {
		if first, by := to.find(d); first != nil {
			return c.merge(to, first, by, d)
		}
	}
	if before := c.pathText; before > MaxPathText {
		return 0
	} else if c.pathText += len(to.above().Path) + len(" > =") + len(d.Key) + len(d.Value); c.pathText > MaxPathText {
		c.Errorf(d.At, "the names of the rules up to here take more than %d MiB, since each has the keys and values of all "+
			"levels above it; use fewer levels, or shorter keys and values", MaxPathText>>20)
		return 0
	}
	n := &Node{Rule: c.rule(to, d)}
	return c.below(to, n, c.insert(to, d, n), d)
}

// below adds the descriptors below d, which leads to n by the pattern `by`, if not nil. It returns the levels at which
// one of these rules or n's rule denies.
func (c *Builder) below(to parent, n *Node, by *Pattern, d *Descriptor) (enforced levels) {
	if len(n.Rule.Limits) > 0 && n.Rule.Mode != limiter.Shadow {
		enforced = 1
	}
	for _, child := range d.Descriptors {
		enforced |= c.descriptor(parent{n, to.domain}, child).below()
	}
	if by != nil {
		by.enforced |= enforced
	}
	return enforced
}

func (c *Builder) rule(to parent, d *Descriptor) *Rule {
	own := newLevel(d)
	r := &Rule{
		Domain:         to.domain.name,
		Path:           c.path(to.above().Path, d),
		Source:         c.here.line(),
		Metadata:       d.Metadata,
		ShadowMode:     d.ShadowMode,
		QuotaMode:      d.QuotaMode,
		ShareThreshold: own.shared != "",
		HashValues:     own.hash,
		Response:       d.Response,
		Description:    d.Description,
		Owner:          d.Owner,
		Extra:          d.Extra,
		depth:          to.above().depth + 1,
		levels:         to.above().levelsTo(own),
		process:        c.process,
	}
	r.Mode = c.process.mode(d.ShadowMode, d.QuotaMode)
	c.addLimits(to.domain, r, d)
	to.domain.rules = append(to.domain.rules, r)
	return r
}

// levelsTo returns the levels of a rule below r whose own level is last. Trailing zero levels are left out.
func (r *Rule) levelsTo(last level) []level {
	if last == (level{}) {
		return r.levels
	}
	levels := make([]level, r.depth+1)
	copy(levels, r.levels)
	levels[r.depth] = last
	return levels
}

func (c *Builder) path(parent string, d *Descriptor) string {
	above, is := " > ", "="
	if parent == "" {
		above = ""
	}
	if d.Value == "" {
		is = ""
	}
	return parent + above + pathKey(d.Key) + is + pathValue(d.Value) + pathValue(d.Match.text())
}

// addLimits adds the limits of d to r, and records their names and what they replace.
func (c *Builder) addLimits(to *domain, r *Rule, d *Descriptor) {
	all := c.checkLimits(d)
	for i := range all {
		l := &all[i]
		if l.Name != "" {
			to.named[l.Name] = true
		}
		for _, p := range l.Replaces {
			to.replaces = append(to.replaces, replacement{l.Name, Text{p.Text, c.at(p.At)}})
		}
		which := newCounter(&l.params, &l.placement)
		if d.RateLimits != nil {
			if which.name = l.Name; l.Name == "" {
				which.distinguish(all, i)
			}
		}
		switch {
		case l.Unlimited:
			r.Unlimited, r.Replaces = true, replaced(l)
		case l.policy != nil:
			if r.Limits == nil {
				r.Limits = make([]*Limit, 0, len(all))
			}
			r.Limits = append(r.Limits, c.newLimit(r, l, which))
		}
	}
}

func replaced(l *checked) []string {
	var all []string
	for _, p := range l.Replaces {
		all = append(all, p.Text)
	}
	return all
}

func (c *Builder) newLimit(r *Rule, from *checked, which counter) *Limit {
	l := &Limit{
		ID:             len(c.limits),
		Name:           from.Name,
		Policy:         from.policy.Policy,
		Unit:           from.unit,
		UnitMultiplier: uint32(from.multiplier), //nolint:gosec // checkRate keeps it within 32 bits
		Replaces:       replaced(from),
		OnStoreFailure: c.process.OnStoreFailure,
		Default:        from.byDefault,
		Rule:           r,
		params:         &from.policy.params,
		placement:      from.policy.route,
	}
	if from.reserved != nil {
		l.Reservation, l.Ends = from.reserved, from.ends.Policy
	}
	if from.OnStoreFailure != nil {
		l.OnStoreFailure = *from.OnStoreFailure
	}
	if err := l.share(); err != nil {
		c.Errorf(from.at, "%s", err)
	}
	l.keyStart = which.keyStart(r.Domain)
	c.limits = append(c.limits, l)
	return l
}

// Position returns the index, from 1, of the limit with l.ID among the rule's limits; 0 for ID -1.
func (l *Limit) Position() int {
	return 1 + slices.IndexFunc(l.Rule.Limits, func(of *Limit) bool { return of.ID == l.ID })
}

// IsLocal reports whether this process counts the limit while the store fails.
func (l *Limit) IsLocal() bool { return l.Local != nil && l.OnStoreFailure == Local }

// share sets Local to this process's share of the limit, whose Policy and Reservation must be set. The share has no
// Reserve, because the end of a request goes to the store, which has not charged the request.
func (l *Limit) share() (err error) {
	if l.Local = l.Policy; l.Rule.process.Replicas > 1 || l.Reservation != nil {
		placement := l.Placement()
		params := placement.completed(*l.params)
		params.Reserve = 0
		l.Local, err = limit.Share(params, int64(l.Rule.process.Replicas))
	}
	return err
}
