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
	// leastRate is the rate, in requests per second, below which dividing a limit makes Envoys deny requests that the
	// whole limit would admit.
	leastRate = 10.
	// minBurst is the minimum time whose hits a limit must admit at once. minSlide is the minimum length of a sliding
	// window, because hits that are charged a tick early count a tick longer than the window.
	minBurst, minSlide = 2 * tick, 4 * time.Second
)

// Check returns errors for limits that cannot be quotas of Envoys, and warnings for limits that divide badly.
func Check(set *descriptors.Set) (errs, warnings descriptors.Errors) {
	for _, d := range set.Domains() {
		for _, r := range d.Rules() {
			for _, l := range r.Limits {
				h := limiter.Hit{Policy: l.Policy, Route: l.Route(), Mode: r.Mode}
				if why := Problem(l, &h); why != "" {
					errs = append(errs, problemOf(r, "", "%s", why))
				} else if r.Mode != limiter.Shadow && l.Policy.Limit() > 0 && rateOf(l.Policy) < leastRate {
					warnings = append(warnings, problemOf(r, descriptors.WarnQuota,
						"%s: %d per %s is too small to divide among Envoys: they would deny requests although the limit has room; "+
							"use the rate limit service for it", r.Path, l.Policy.Limit(), descriptors.FormatDuration(l.Policy.Window())))
				}
			}
		}
	}
	return errs, warnings
}

// problemOf returns an error or warning about a rule.
func problemOf(r *descriptors.Rule, code, format string, args ...any) *descriptors.Error {
	i := strings.LastIndexByte(r.Source, ':')
	line, _ := strconv.Atoi(r.Source[i+1:])
	text := fmt.Sprintf(format, args...)
	at := descriptors.Position{File: r.Source[:max(i, 0)], Line: line, Column: 1}
	return &descriptors.Error{Position: at, Msg: text, Code: code}
}

// Unfit returns the reason why a Keeper cannot assign parts of the hit's limit, or "" if it can. A limit of 0 is fit,
// because it denies all requests.
func Unfit(h *limiter.Hit) string {
	p := h.Policy
	in := p.Params()
	if r, ok := h.Route.(interface{ UsesRedisCell() bool }); ok && r.UsesRedisCell() {
		return "engine: redis_cell cannot be charged in advance; use the default engine"
	}
	switch {
	case p.Limit() == 0:
		return ""
	case p.Core().Reserve > 0:
		return "reservation: the real cost of a request is unknown when Weir charges in advance; remove reservation, or " +
			"use the rate limit service"
	case !p.Algorithm().Kind().Is(step.Prepayable):
		return fmt.Sprintf("algorithm: %s cannot be charged in advance, since its decisions depend on the moment of each "+
			"request; use token_bucket, or the rate limit service", p.Algorithm())
	case isWindow(p) && !p.Core().Is(step.InWindows) && p.Window() < minSlide:
		return fmt.Sprintf("algorithm: a %s of %s is too short to be charged in advance, it must be at least %s; "+
			"use token_bucket, or the rate limit service", p.Algorithm(), p.Window(), minSlide)
	case in.StartsEmpty:
		return "initial: a bucket that starts empty cannot be charged in advance; use initial: full"
	case in.RefillsAtOnce:
		return "refill: a bucket that is refilled in intervals cannot be charged in advance; use refill: greedy"
	case in.ChargeDenied != limiter.ChargeNone && p.Algorithm() != limiter.FixedWindow:
		return "charge_denied: requests that an Envoy denies without a call are not charged; use charge_denied: none"
	case float64(p.Capacity()) < rateOf(p)*minBurst.Seconds():
		return fmt.Sprintf("burst: %d at once is less than what %d per %s admits in %s, which Weir charges in advance; "+
			"allow a larger burst, or use the rate limit service", p.Capacity(), p.Limit(), p.Window(), minBurst)
	}
	return ""
}

// rateOf returns the limit's long-term rate in hits per second.
func rateOf(p *limiter.Policy) float64 { return float64(p.Limit()) / p.Window().Seconds() }

// prepaid returns the hit with a policy that does not charge denied hits, so that a Keeper can try hits that may not
// fit. By default a fixed window counts denied requests, but that has no effect because the window is full.
func prepaid(h limiter.Hit) limiter.Hit {
	h.Mode, h.Group, h.ByItself, h.Peek = limiter.Enforce, 0, false, false
	if in := h.Policy.Params(); in.ChargeDenied != limiter.ChargeNone {
		in.ChargeDenied = limiter.ChargeNone
		if p, err := limiter.NewPolicy(in); err == nil { // every policy can be changed so
			h.Policy = p
		}
	}
	return h
}
