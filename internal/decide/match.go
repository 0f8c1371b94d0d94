package decide

import (
	"slices"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Match finds the rules and limits of the request's descriptors, and makes a hit of each limit that counts. A hit
// costs what its descriptor says. It asks no store. The error is an InvalidError.
func (d *Decider) Match(rules *descriptors.Set, r *Request) (*Verdict, error) {
	v := &r.Verdict
	if v.Request != nil { // it was decided before
		v.reset()
	}
	v.Request = r
	if err := r.check(); err != nil {
		return nil, err
	}
	v.Statuses = slices.Grow(v.Statuses, len(r.Descriptors))[:len(r.Descriptors)]
	if v.Domain = rules.Domain(r.Domain); v.Domain == nil {
		return v, nil
	}
	if err := v.findLimits(); err != nil {
		return nil, err
	}
	if err := v.makeHits(); err != nil {
		return nil, err
	}
	return v, nil
}

// findLimits finds the rule and the limits of each descriptor, and the names of limits that are replaced.
func (v *Verdict) findLimits() error {
	for i := range v.Statuses {
		d, st := &v.Request.Descriptors[i], &v.Statuses[i]
		st.Rule = v.Domain.Match(d.Entries)
		if st.Rule != nil {
			st.limits = st.Rule.Limits
			v.replaced = append(v.replaced, st.Rule.Replaces...)
		}
		if d.Own.Window != 0 {
			l, err := v.Domain.Override(d.Entries, d.Own.Requests, d.Own.Window)
			if err != nil {
				return invalid("descriptors[%d].limit: %v", i, err)
			}
			st.limits = []*descriptors.Limit{l}
		}
		for _, l := range st.limits {
			v.replaced = append(v.replaced, l.Replaces...)
		}
	}
	return nil
}

// maxScanned is how many names are looked through one by one: up to there that is cheaper than a map.
const maxScanned = 16

// isReplaced reports whether limits of that name do not count in this request.
func (v *Verdict) isReplaced(name string) bool {
	if name == "" || len(v.replaced) <= maxScanned {
		return name != "" && slices.Contains(v.replaced, name)
	}
	if v.replacedSet == nil {
		v.replacedSet = make(map[string]bool, len(v.replaced))
		for _, name := range v.replaced {
			v.replacedSet[name] = true
		}
	}
	return v.replacedSet[name]
}

// isQuotaWithRoom reports whether the descriptor is a quota that is never over, so that no other quota denies the
// request: one whose rule is in shadow mode, and with --quota-mode each descriptor without a limit that counts, unless
// its rule is unlimited. It is so in envoyproxy/ratelimit.
func (v *Verdict) isQuotaWithRoom(st *Status) bool {
	if st.first == st.last {
		return v.Domain.QuotaMode() && (st.Rule == nil || !st.Rule.Unlimited)
	}
	rule := v.Limits[st.first].Rule
	return rule.Mode == limiter.Shadow && (rule.QuotaMode || v.Domain.QuotaMode())
}

// makeHits makes a hit of each limit that is not replaced. The keys of all hits are one allocation.
func (v *Verdict) makeHits() error {
	o := v.Request.o
	hasRoom := false
	for i := range v.Statuses {
		d, st := &v.Request.Descriptors[i], &v.Statuses[i]
		st.first = len(v.Hits)
		for _, l := range st.limits {
			if v.isReplaced(l.Name) {
				continue
			}
			if len(v.Hits) == o.MaxCounters {
				return invalid("descriptors: their rules have more than %d limits together; "+
					"give these rules fewer limits, send fewer descriptors, or raise --max-counters", o.MaxCounters)
			}
			v.keys = l.AppendKey(v.keys, d.Entries)
			v.ends = append(v.ends, len(v.keys))
			v.Limits = append(v.Limits, l)
			v.Hits = append(v.Hits, limiter.Hit{
				Policy: l.Policy, N: d.Cost, Look: d.Cost == 0, ByItself: o.ChargeEach, Mode: l.Rule.Mode, Group: i,
				Route: l.Route(),
			})
		}
		st.last = len(v.Hits)
		hasRoom = hasRoom || v.isQuotaWithRoom(st)
	}
	if hasRoom {
		for i := range v.Hits {
			v.Hits[i].Group = ^v.Hits[i].Group
		}
	}
	keys, start := string(v.keys), 0
	for i, end := range v.ends {
		h := &v.Hits[i]
		h.Key, start = keys[start:end], end
		if token := v.Request.Descriptors[max(h.Group, ^h.Group)].start; token != "" {
			takeBack(h, token)
		}
	}
	v.Decisions = slices.Grow(v.Decisions, len(v.Hits))[:len(v.Hits)]
	return nil
}
