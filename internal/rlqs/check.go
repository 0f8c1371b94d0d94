package rlqs

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const (
	// Below leastRate requests a second, a limit does not divide: an Envoy that is assigned a part of it denies requests
	// that the limit as a whole has room for.
	leastRate = 10.
	// minBurst is the shortest time whose hits a limit must admit at once, and minSlide the shortest window that may
	// slide: what is charged a tick ahead counts a tick longer than the window.
	minBurst, minSlide = 2 * tick, 4 * time.Second
)

// Check returns what of the rules cannot be a quota of Envoys, and what can, but may not do what was meant.
func Check(set *descriptors.Set) (errs, warnings descriptors.Errors) {
	for _, d := range set.Domains() {
		for _, r := range d.Rules() {
			for _, l := range r.Limits {
				h := limiter.Hit{Policy: l.Policy, Route: l.Route(), Mode: r.Mode}
				if why := Problem(l, &h); why != "" {
					errs = append(errs, problemOf(r, "", "%s", why))
				} else if r.Mode != limiter.Shadow && l.Policy.Limit() > 0 && rateOf(l.Policy) < leastRate {
					warnings = append(warnings, problemOf(r, descriptors.WarnQuota,
						"%s: %d per %s do not divide among Envoys, which deny requests that the limit as a whole has room for; "+
							"ask the rate limit service for it", r.Path, l.Policy.Limit(), descriptors.FormatDuration(l.Policy.Window())))
				}
			}
		}
	}
	return errs, warnings
}

// problemOf is about a rule.
func problemOf(r *descriptors.Rule, code, format string, args ...any) *descriptors.Error {
	i := strings.LastIndexByte(r.Source, ':')
	line, _ := strconv.Atoi(r.Source[i+1:])
	text := fmt.Sprintf(format, args...)
	at := descriptors.Position{File: r.Source[:max(i, 0)], Line: line, Column: 1}
	return &descriptors.Error{Position: at, Msg: text, Code: code}
}

// Unfit says why a Keeper cannot assign parts of the limit that the hit asks; it is empty if it can. A limit of 0 fits:
// it denies all.
func Unfit(h *limiter.Hit) string {
	p := h.Policy
	in := p.Params()
	if r, ok := h.Route.(interface{ UsesRedisCell() bool }); ok && r.UsesRedisCell() {
		return "engine: redis_cell cannot be charged ahead; use the default engine"
	}
	switch {
	case p.Limit() == 0:
		return ""
	case !p.Algorithm().Kind().Is(step.Prepayable):
		return fmt.Sprintf("algorithm: %s cannot be charged ahead, since its answers depend on the moment at which each "+
			"request comes; use token_bucket, or the rate limit service", p.Algorithm())
	case isWindow(p) && !p.Core().Is(step.InWindows) && p.Window() < minSlide:
		return fmt.Sprintf("algorithm: a %s of %s is too short to be charged ahead, it must be at least %s; "+
			"use token_bucket, or the rate limit service", p.Algorithm(), p.Window(), minSlide)
	case in.StartsEmpty:
		return "initial: a bucket that starts empty cannot be charged ahead; use initial: full"
	case in.RefillsAtOnce:
		return "refill: a bucket that is refilled in intervals cannot be charged ahead; use refill: greedy"
	case in.ChargeDenied != limiter.ChargeNone && p.Algorithm() != limiter.FixedWindow:
		return "charge_denied: requests that an Envoy denies by itself are not charged; use charge_denied: none"
	case float64(p.Capacity()) < rateOf(p)*minBurst.Seconds():
		return fmt.Sprintf("burst: %d at once is less than what %d per %s admits in %s, which an Envoy is charged ahead; "+
			"allow a larger burst, or use the rate limit service", p.Capacity(), p.Limit(), p.Window(), minBurst)
	}
	return ""
}

// rateOf is how many hits the limit admits in a second, in the long run.
func rateOf(p *limiter.Policy) float64 { return float64(p.Limit()) / p.Window().Seconds() }

// prepaid returns the hit with a policy that charges a denied hit nothing, so that hits can be asked for that may not
// fit. A fixed window counts requests that it denies, by default: nobody sees that, since the window is full.
func prepaid(h limiter.Hit) limiter.Hit {
	h.Mode, h.Group, h.ByItself, h.Look = limiter.Enforce, 0, false, false
	if in := h.Policy.Params(); in.ChargeDenied != limiter.ChargeNone {
		in.ChargeDenied = limiter.ChargeNone
		if p, err := limiter.NewPolicy(in); err == nil { // each policy may be so
			h.Policy = p
		}
	}
	return h
}
