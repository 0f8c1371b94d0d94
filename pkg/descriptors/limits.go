package descriptors

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// maxNumber is the largest number of requests_per_unit and its like: what Envoy's own 32-bit field can carry.
const maxNumber = math.MaxUint32

func (r *reader) rateLimitShape() *shape[rateLimit] {
	s := newShape[rateLimit]("a rate limit")
	// field notes where a field is written, and whether it can be read.
	field := func(name string, read func(n *yaml.Node, l *rateLimit)) {
		s.field(name, func(n *yaml.Node, l *rateLimit) {
			if isNull(resolve(n)) {
				return
			}
			l.given = append(l.given, place{name, r.at(n)})
			before := r.errors()
			read(n, l)
			l.bad = l.bad || r.errors() > before
		})
	}
	number := func(name string, lo, hi int64, of func(l *rateLimit) *int64) {
		field(name, func(n *yaml.Node, l *rateLimit) {
			if v, ok := r.integer(n, lo, hi); ok {
				*of(l) = v
			}
		})
	}
	field("name", func(n *yaml.Node, l *rateLimit) { l.name = r.text(n) })
	field("replaces", func(n *yaml.Node, l *rateLimit) { l.replaces = r.readReplaces(n) })
	field("unlimited", func(n *yaml.Node, l *rateLimit) { l.unlimited = r.boolean(n) })
	field("algorithm", r.readAlgorithm)
	number("requests_per_unit", 0, maxNumber, func(l *rateLimit) *int64 { return &l.params.Limit })
	field("unit", func(n *yaml.Node, l *rateLimit) { l.unit = readName(r, n, ParseUnit) })
	number("unit_multiplier", 1, maxNumber, func(l *rateLimit) *int64 { return &l.multiplier })
	field("window", func(n *yaml.Node, l *rateLimit) { l.window = readName(r, n, parseDuration) })
	number("burst", 1, maxNumber, func(l *rateLimit) *int64 { return &l.params.Burst })
	number("max_cost", 1, maxNumber, func(l *rateLimit) *int64 { return &l.params.MaxCost })
	number("segments", 1, limiter.MaxSegments, func(l *rateLimit) *int64 { return &l.params.Segments })
	number("segment_cap", 1, maxNumber, func(l *rateLimit) *int64 { return &l.params.SegmentCap })
	number("max_log_entries", 1, 1_000_000, func(l *rateLimit) *int64 { return &l.params.MaxLogEntries })
	field("oldest", func(n *yaml.Node, l *rateLimit) { l.params.Oldest = readName(r, n, limiter.ParseOldest) })
	field("align", func(n *yaml.Node, l *rateLimit) { l.params.Align = readName(r, n, limiter.ParseAlign) })
	field("time_zone", func(n *yaml.Node, l *rateLimit) { l.params.TimeZone = readName(r, n, r.timeZone) })
	field("charge_denied", func(n *yaml.Node, l *rateLimit) {
		l.params.ChargeDenied = readName(r, n, limiter.ParseChargeDenied)
	})
	field("on_store_failure", func(n *yaml.Node, l *rateLimit) { l.onStoreFailure = readName(r, n, ParseOnStoreFailure) })
	field("consistency", func(n *yaml.Node, l *rateLimit) { l.leased = readName(r, n, parseConsistency) })
	field("initial", func(n *yaml.Node, l *rateLimit) { l.params.Initial = readName(r, n, limiter.ParseInitial) })
	field("refill", func(n *yaml.Node, l *rateLimit) { l.params.Refill = readName(r, n, limiter.ParseRefill) })
	field("engine", func(n *yaml.Node, l *rateLimit) { l.params.Engine = readName(r, n, limiter.ParseEngine) })
	field("store", func(n *yaml.Node, l *rateLimit) {
		if l.params.Store = readName(r, n, parseStore); l.params.Store != "" {
			at := r.at(n)
			r.stores = append(r.stores, &Error{File: at.file, Line: at.line, Column: at.column, Msg: l.params.Store})
		}
	})
	span := func(name string, parse func(string) (time.Duration, error), of func(l *rateLimit) *time.Duration) {
		field(name, func(n *yaml.Node, l *rateLimit) {
			before := r.errors()
			if *of(l) = readName(r, n, parse); *of(l) != 0 || r.errors() > before {
				return
			}
			if name == "max_wait" {
				l.waitsForNothing = true // what to write instead depends on the algorithm: see finish
				return
			}
			r.add(r.at(n), "%s must be more than 0; leave it out for its default", name)
		})
	}
	span("max_wait", parseDuration, func(l *rateLimit) *time.Duration { return &l.params.MaxWait })
	span("burst_seconds", parseSeconds, func(l *rateLimit) *time.Duration { return &l.params.BurstFor })
	span("warm_up", parseDuration, func(l *rateLimit) *time.Duration { return &l.params.WarmUp })
	field("cold_factor", func(n *yaml.Node, l *rateLimit) { l.params.ColdFactor = readName(r, n, parseFactor) })
	span("lease_for", parseDuration, func(l *rateLimit) *time.Duration { return &l.params.LeaseFor })
	span("lease", parseDuration, func(l *rateLimit) *time.Duration { return &l.lease })
	forPeople(r, s)
	s.synonyms = rateLimitSynonyms
	s.meant = func(name string, l *rateLimit) { l.meant = append(l.meant, name) }
	return s
}

// readName reads a text that parse knows the meaning of.
func readName[T any](r *reader, n *yaml.Node, parse func(string) (T, error)) (v T) {
	r.scalar(n, "a text", func(n *yaml.Node) {
		var err error
		if v, err = parse(n.Value); err != nil {
			r.add(r.at(n), "%s: %s", r.field, err)
		}
	})
	return v
}

// parseStore reads the name of a store.
func parseStore(name string) (string, error) {
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return "", fmt.Errorf("%q must be a name of a-z, 0-9 and _, as --named-store has it", name)
		}
	}
	if name == "" {
		return "", errors.New("there is no name; write one that --named-store has, or remove store")
	}
	return name, nil
}

func (r *reader) readAlgorithm(n *yaml.Node, l *rateLimit) {
	l.params.Algorithm = readName(r, n, func(name string) (limiter.Algorithm, error) {
		a, err := limiter.ParseAlgorithm(name)
		if err == nil {
			return a, nil // looking for a name that is near costs more than all else of a limit
		}
		if meant := AlgorithmMeant(name); meant != "" {
			err = fmt.Errorf("%w; did you mean %s?", err, meant)
		}
		return a, err
	})
}

var onStoreFailureNames = [...]string{Allow: "allow", Deny: "deny", Local: "local"}

// ParseOnStoreFailure reads the value's name in a rule file. The error says which there are.
func ParseOnStoreFailure(name string) (OnStoreFailure, error) {
	for _, o := range []OnStoreFailure{Allow, Deny, Local} {
		if o.String() == name {
			return o, nil
		}
	}
	return Allow, fmt.Errorf("%q is not known: use allow, deny or local", name)
}

// parseConsistency says whether permits are taken ahead.
func parseConsistency(name string) (leased bool, err error) {
	if name != "strict" && name != "leased" {
		return false, fmt.Errorf("%q is not known: use strict or leased", name)
	}
	return name == "leased", nil
}

func (r *reader) readReplaces(n *yaml.Node) (all []place) {
	r.list(n, "replaces", func(item *yaml.Node) {
		p := place{at: r.at(item)}
		if readFields(r, item, r.replaces, &p) && p.name != "" {
			all = append(all, p)
		}
	})
	return all
}

// readRateLimit reads one limit and makes its policy. Nil, and said, if it is no mapping.
func (r *reader) readRateLimit(n *yaml.Node) *rateLimit {
	l := r.limitPool.next()
	*l = rateLimit{at: r.at(n), given: l.given[:0], meant: l.meant[:0]}
	isMapping := false
	r.enter(n, func(n *yaml.Node) {
		if isNull(n) {
			r.add(r.at(n), "this limit is empty; write requests_per_unit and unit, or unlimited: true")
			return
		}
		if n.Kind == yaml.SequenceNode {
			r.add(r.at(n), "a rate limit must be fields with values (name: value), got a list; write rate_limits for several limits")
			return
		}
		l.given = slices.Grow(l.given, len(n.Content)/2)
		isMapping = readFields(r, n, r.rateLimits, l)
	})
	if !isMapping {
		return nil
	}
	for _, p := range l.replaces {
		if p.name == l.name {
			r.add(p.at, "a limit cannot replace itself; name another limit than %s", p.name)
		}
	}
	if l.unlimited {
		r.checkUnlimited(l)
		return l
	}
	r.finish(l)
	return l
}

// checkUnlimited refuses what would limit beside `unlimited: true`, but for requests_per_unit, which
// envoyproxy/ratelimit ignores there: of that it warns.
func (r *reader) checkUnlimited(l *rateLimit) {
	const say = "unlimited: true and %s contradict each other: nothing is limited; remove unlimited for a limit, or %s for none"
	var beside []string
	var at position
	for _, g := range l.given {
		if slices.Contains([]string{"unlimited", "name", "replaces"}, g.name) {
			continue
		}
		if g.name != "requests_per_unit" && at.line == 0 {
			at = g.at
		}
		beside = append(beside, g.name)
	}
	all := strings.Join(beside, ", ")
	switch {
	case at.line > 0:
		r.add(at, say, all, all)
	case len(beside) > 0:
		r.warn(WarnUnlimited, l.place("requests_per_unit"), say, all, all)
	}
}

// finish completes the limit's parameters, checks them together, and makes the policy.
func (r *reader) finish(l *rateLimit) {
	if r.overflow {
		return // not all of it was read, and that is said
	}
	if !l.has("algorithm") {
		l.params.Algorithm = limiter.FixedWindow
	}
	if l.waitsForNothing {
		l.bad = true
		if instead := "leave it out for its default"; l.params.Algorithm != limiter.LeakyQueue {
			r.add(l.place("max_wait"), "max_wait must be more than 0; %s", instead)
		} else {
			r.add(l.place("max_wait"), "max_wait must be more than 0; for requests that are evenly spaced and never wait write "+
				"algorithm: funnel and burst: 1, or %s", instead)
		}
	}
	rate := r.checkRate(l) && r.checkCalendar(l)
	r.checkLeased(l)
	if foreign := r.checkParameters(l); foreign || !rate || l.bad {
		return
	}
	for _, e := range paramErrors(r.policy(l)) {
		r.add(l.paramPlace(e.Param), "%s", e.Error())
	}
	if l.shared != nil {
		r.checkWait(l)
		r.warnOf(l)
	}
}

// policy sets the limit's policy. Limits with the same parameters share one, and often there are few.
func (r *reader) policy(l *rateLimit) error {
	if l.shared = r.policies[l.params]; l.shared != nil {
		return nil
	}
	policy, err := limiter.NewPolicy(l.params)
	if err != nil {
		return err
	}
	if r.policies == nil {
		r.policies = map[limiter.Params]*sharedPolicy{}
	}
	l.shared = &sharedPolicy{policy, l.params}
	r.policies[l.params] = l.shared
	return nil
}

// checkRate checks that the limit says how many and per which time, once, and sets the policy's window.
func (r *reader) checkRate(l *rateLimit) bool {
	before := r.errors()
	if l.lacks("requests_per_unit") {
		r.add(l.at, "requests_per_unit is missing; write how many requests may pass, 0 to deny all of them, or unlimited: true")
	}
	switch unit, window := l.has("unit"), l.has("window"); {
	case l.params.Algorithm.CountsInFlight():
		r.checkLease(l)
	case unit && window:
		r.add(l.place("window"), "unit and window are both given; remove one of the two")
	case window && l.has("unit_multiplier"):
		r.add(l.place("unit_multiplier"), "unit_multiplier goes with unit, not with window; remove it and write the whole window")
	case !unit && !window && (!l.lacks("unit") || !l.lacks("window")): // misspelled, and that is said
		return false
	case !unit && !window:
		r.add(l.at, "unit is missing; write unit: second, minute, hour, day, week, month or year, or a window such as window: 90s")
	case window:
		l.params.Window = l.window
		l.unit, l.multiplier = UnitUnknown, 0
		if !l.bad {
			u, m := unitOf(l.window)
			l.unit, l.multiplier = u, int64(m)
		}
	default:
		if l.multiplier == 0 {
			l.multiplier = 1
		}
		if d := l.unit.Duration(); d > 0 && l.multiplier > int64(limiter.MaxWindow/d) {
			r.add(l.place("unit_multiplier"), "unit_multiplier must be at most %d with unit: %s (10 years)", limiter.MaxWindow/d, l.unit)
			return false
		}
		l.params.Window = l.unit.Duration() * time.Duration(l.multiplier)
	}
	return r.errors() == before && l.has("requests_per_unit")
}

// checkLeased gives lease_for its default, and refuses it where nothing is leased.
func (r *reader) checkLeased(l *rateLimit) {
	switch {
	case l.leased && !l.has("lease_for"):
		l.params.LeaseFor = limiter.DefaultLeaseFor
	case !l.leased && l.has("lease_for"):
		l.bad = true
		r.add(l.place("lease_for"), "lease_for goes with consistency: leased; write that, or remove lease_for")
	}
}

// checkLease sets the policy's window to the lease: requests in flight are not counted per time.
func (r *reader) checkLease(l *rateLimit) {
	for _, name := range []string{"unit", "unit_multiplier", "window"} {
		if l.has(name) {
			r.add(l.place(name), "concurrency counts requests in flight, not per %s; remove it, and write lease: 60s for how long "+
				"a request that is never given back counts", name)
		}
	}
	l.params.Window = limiter.DefaultLease
	if l.has("lease") {
		l.params.Window = l.lease
	}
}

// envoyTimeout is how long Envoy waits for an answer unless its filter says otherwise.
const envoyTimeout = 20 * time.Millisecond

// checkWait warns of answers that come when Envoy no longer waits for them.
func (r *reader) checkWait(l *rateLimit) {
	if wait := l.shared.MaxWait(); wait > envoyTimeout {
		r.warn(WarnMaxWait, l.place("max_wait"), "answers are held back for up to %s, but Envoy waits only %s unless its rate limit filter has a "+
			"longer timeout; raise that, or write a max_wait below it", wait, envoyTimeout)
	}
}

// parameters are the fields that only some algorithms take.
var parameters = func() map[string]bool {
	all := map[string]bool{}
	for _, name := range limiter.AlgorithmNames() {
		if a, err := limiter.ParseAlgorithm(name); err == nil {
			for _, p := range a.Parameters() {
				all[p] = true
			}
		}
	}
	return all
}()

// checkParameters finds parameters that the algorithm does not have, at whatever value.
func (r *reader) checkParameters(l *rateLimit) (foreign bool) {
	if l.params.Algorithm == 0 {
		return false // it is not known, and that is said
	}
	for _, g := range l.given {
		if parameters[g.name] && !l.params.Algorithm.Has(g.name) {
			takes := strings.Join(l.params.Algorithm.Parameters(), ", ")
			r.add(g.at, "%s is not a parameter of %s, which takes %s", g.name, l.params.Algorithm, takes)
			foreign = true
		}
	}
	return foreign
}

// paramPlace is where the policy's parameter is written, else where the limit is.
func (l *rateLimit) paramPlace(param string) position {
	if param == "lease_for" && !l.has("lease_for") {
		param = "consistency"
	}
	if param == "window" && !l.has("window") {
		param = "unit"
		if l.params.Algorithm.CountsInFlight() {
			param = "lease"
		}
	}
	return l.place(param)
}

// paramErrors are the parts of a limiter.NewPolicy error.
func paramErrors(err error) []*limiter.ParamError {
	if err == nil {
		return nil
	}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		var all []*limiter.ParamError
		for _, e := range joined.Unwrap() {
			all = append(all, paramErrors(e)...)
		}
		return all
	}
	if one, ok := errors.AsType[*limiter.ParamError](err); ok {
		return []*limiter.ParamError{one}
	}
	return []*limiter.ParamError{{Param: "limit", Msg: err.Error()}}
}
