package rlqs

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Below both, a limit does not divide: an Envoy that is assigned less than so many requests a second, and so many at
// once, denies requests that the limit as a whole has room for.
const (
	leastRate  = 10. // a second
	leastBurst = 10.
)

// Check returns what of the rules cannot be a quota of Envoys, and what can, but may not do what was meant.
func Check(set *descriptors.Set) (errs, warnings descriptors.Errors) {
	for _, d := range set.Domains() {
		for _, r := range d.Rules() {
			for _, l := range r.Limits {
				h := limiter.Hit{Policy: l.Policy, Route: l.Route(), Mode: r.Mode}
				if why := Problem(l, &h); why != "" {
					errs = append(errs, problemOf(r, "", "%s", why))
				} else if r.Mode != limiter.Shadow && !divides(l.Policy) {
					warnings = append(warnings, problemOf(r, descriptors.WarnQuota,
						"%s: %d per %s do not divide among Envoys, which deny requests that the limit as a whole has room for; "+
							"ask the rate limit service for it", r.Path, l.Policy.Limit(), descriptors.FormatDuration(l.Policy.Window())))
				}
			}
		}
		for _, p := range d.OrderProblems() {
			if p.Twice != "" {
				errs = append(errs, problemOf(p.Rule, "",
					"%s: a bucket of Envoy has each key once, so that none reaches this rule, which has %s twice; rename one of them",
					p.Rule.Path, words.Shown(p.Twice)))
				continue
			}
			warnings = append(warnings, problemOf(p.Rule, descriptors.WarnQuota,
				"%s: a bucket of Envoy has no order, and %s at %s has the same keys and comes first; write both in one order",
				p.Rule.Path, p.Other.Path, p.Other.Source))
		}
	}
	return errs, warnings
}

// divides reports whether an Envoy that has all of the limit gets enough at a time to use it.
func divides(p *limiter.Policy) bool {
	rate := rateOf(p)
	return p.Limit() == 0 || rate >= leastRate || min(rate, float64(p.Capacity())/10) >= leastBurst
}

// problemOf is about a rule.
func problemOf(r *descriptors.Rule, code, format string, args ...any) *descriptors.Error {
	file, line := r.Source, 1
	if i := strings.LastIndexByte(file, ':'); i >= 0 {
		if n, err := strconv.Atoi(file[i+1:]); err == nil {
			file, line = file[:i], n
		}
	}
	return &descriptors.Error{File: file, Line: line, Column: 1, Msg: fmt.Sprintf(format, args...), Code: code}
}
