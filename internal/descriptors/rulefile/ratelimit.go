package rulefile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// maxNumber is the largest number of requests_per_unit and its like: what Envoy's own 32-bit field can carry.
const maxNumber = math.MaxUint32

// rateLimit is a limit that is being read.
type rateLimit struct {
	descriptors.RateLimit

	leased  bool  // consistency
	badUnit error // unit is none
}

func (r *reader) rateLimitSchema() *schema[rateLimit] {
	s := newSchema[rateLimit]("a rate limit")
	// field notes where a field is written, and whether it can be read.
	field := func(name string, read func(n *yaml.Node, l *rateLimit)) {
		s.field(name, func(n *yaml.Node, l *rateLimit) {
			if isNull(resolve(n)) {
				return
			}
			l.Fields = append(l.Fields, descriptors.Field{Name: name, At: r.at(n)})
			before := r.Problems()
			read(n, l)
			l.Invalid = l.Invalid || r.Problems() > before
		})
	}
	number := func(name string, lo, hi int64, of func(l *rateLimit) *int64) {
		field(name, func(n *yaml.Node, l *rateLimit) {
			if v, ok := r.integer(n, lo, hi); ok {
				*of(l) = v
			}
		})
	}
	span := func(name string, parse func(string) (time.Duration, error), of func(l *rateLimit) *time.Duration) {
		field(name, func(n *yaml.Node, l *rateLimit) {
			before := r.Problems()
			if *of(l) = readName(r, n, parse); *of(l) == 0 && r.Problems() == before {
				r.Errorf(r.at(n), "%s must be more than 0; leave it out for its default", name)
			}
		})
	}
	field("name", func(n *yaml.Node, l *rateLimit) { l.Name = r.text(n) })
	field("replaces", func(n *yaml.Node, l *rateLimit) { l.Replaces = r.readReplaces(n) })
	field("unlimited", func(n *yaml.Node, l *rateLimit) { l.Unlimited = r.boolean(n) })
	field("algorithm", func(n *yaml.Node, l *rateLimit) { l.Params.Algorithm = readName(r, n, parseAlgorithm) })
	number("requests_per_unit", 0, maxNumber, func(l *rateLimit) *int64 { return &l.Params.Limit })
	field("unit", func(n *yaml.Node, l *rateLimit) {
		r.scalar(n, "a text", func(n *yaml.Node) { l.Unit, l.badUnit = parseUnit(n.Value) })
	})
	number("unit_multiplier", 1, maxNumber, func(l *rateLimit) *int64 { return &l.UnitMultiplier })
	field("window", func(n *yaml.Node, l *rateLimit) { l.Params.Window = readName(r, n, parseDuration) })
	number("burst", 1, maxNumber, func(l *rateLimit) *int64 { return &l.Params.Burst })
	number("max_cost", 1, maxNumber, func(l *rateLimit) *int64 { return &l.Params.MaxCost })
	number("segments", 1, step.MaxSegments, func(l *rateLimit) *int64 { return &l.Params.Segments })
	number("segment_cap", 1, maxNumber, func(l *rateLimit) *int64 { return &l.Params.SegmentCap })
	number("max_log_entries", 1, 1_000_000, func(l *rateLimit) *int64 { return &l.Params.MaxLogEntries })
	field("oldest", func(n *yaml.Node, l *rateLimit) { l.Params.Oldest = readName(r, n, named[limiter.Oldest]) })
	field("align", func(n *yaml.Node, l *rateLimit) { l.Params.Align = readName(r, n, named[limiter.Align]) })
	field("time_zone", func(n *yaml.Node, l *rateLimit) { l.Params.TimeZone = readName(r, n, r.timeZone) })
	field("charge_denied", func(n *yaml.Node, l *rateLimit) {
		l.Params.ChargeDenied = readName(r, n, named[limiter.ChargeDenied])
	})
	field("on_store_failure", func(n *yaml.Node, l *rateLimit) {
		onFailure := readName(r, n, descriptors.ParseOnStoreFailure)
		l.OnStoreFailure = &onFailure
	})
	field("consistency", func(n *yaml.Node, l *rateLimit) { l.leased = readName(r, n, either("strict", "leased")) })
	field("initial", func(n *yaml.Node, l *rateLimit) { l.Params.StartsEmpty = readName(r, n, either("full", "empty")) })
	field("refill", func(n *yaml.Node, l *rateLimit) {
		l.Params.RefillsAtOnce = readName(r, n, either("greedy", "interval"))
	})
	field("engine", func(n *yaml.Node, l *rateLimit) {
		l.Placement.RedisCell = readName(r, n, either("weir", "redis_cell"))
	})
	field("store", func(n *yaml.Node, l *rateLimit) { l.Placement.Store = readName(r, n, parseStore) })
	span("max_wait", parseDuration, func(l *rateLimit) *time.Duration { return &l.Params.MaxWait })
	span("burst_seconds", parseSeconds, func(l *rateLimit) *time.Duration { return &l.Params.BurstFor })
	span("warm_up", parseDuration, func(l *rateLimit) *time.Duration { return &l.Params.WarmUp })
	field("cold_factor", func(n *yaml.Node, l *rateLimit) { l.Params.ColdFactor = readName(r, n, parseFactor) })
	span("lease_for", parseDuration, func(l *rateLimit) *time.Duration { return &l.Placement.LeaseFor })
	span("lease", parseDuration, func(l *rateLimit) *time.Duration { return &l.Lease })
	forPeople(r, s)
	s.synonyms = rateLimitSynonyms
	s.meant = func(name string, l *rateLimit) { l.Misspelled = append(l.Misspelled, name) }
	return s
}

// readRateLimits reads a list of limits: never nil.
func (r *reader) readRateLimits(n *yaml.Node) []*descriptors.RateLimit {
	all := []*descriptors.RateLimit{}
	before := r.Problems()
	if resolve(n).Kind == yaml.MappingNode {
		r.Errorf(r.at(n),
			"rate_limits must be a list (lines that start with -), got fields; write rate_limit for one limit, "+
				"or a - before it")
		return all
	}
	r.list(n, "rate_limits", func(item *yaml.Node) {
		if l := r.readRateLimit(item); l != nil {
			all = append(all, l)
		}
	})
	if len(all) == 0 && r.Problems() == before {
		r.Errorf(r.at(n), "rate_limits is empty; write at least one limit, or leave it out")
	}
	return all
}

// readRateLimit reads one limit. Nil, and reported, if it is no mapping.
func (r *reader) readRateLimit(n *yaml.Node) *descriptors.RateLimit {
	l := &rateLimit{RateLimit: descriptors.RateLimit{At: r.at(n)}}
	isMapping := false
	r.enter(n, func(n *yaml.Node) {
		switch {
		case isNull(n):
			r.Errorf(r.at(n), "this limit is empty; write requests_per_unit and unit, or unlimited: true")
		case n.Kind == yaml.SequenceNode:
			r.Errorf(r.at(n),
				"a rate limit must be fields with values (name: value), got a list; write rate_limits for several limits")
		default:
			l.Fields = slices.Grow(l.Fields, len(n.Content)/2)
			isMapping = readFields(r, n, r.rateLimitFields, l)
		}
	})
	if !isMapping {
		return nil
	}
	r.finish(l)
	return &l.RateLimit
}

// finish completes what depends on several fields.
func (r *reader) finish(l *rateLimit) {
	at := func(name string) descriptors.Position {
		i := slices.IndexFunc(l.Fields, func(f descriptors.Field) bool { return f.Name == name })
		return l.Fields[i].At
	}
	switch {
	case l.badUnit != nil && l.Unlimited: // where it means nothing
		r.Tolerate(at("unit"), "nothing is limited", "unit: %s", l.badUnit)
		return
	case l.Unlimited:
		return
	case l.badUnit != nil:
		l.Invalid = true
		r.Errorf(at("unit"), "unit: %s", l.badUnit)
	}
	leasesFor := slices.ContainsFunc(l.Fields, func(f descriptors.Field) bool { return f.Name == "lease_for" })
	switch {
	case l.leased && !leasesFor:
		l.Placement.LeaseFor = descriptors.DefaultLeaseFor
	case !l.leased && leasesFor:
		l.Invalid = true
		r.Errorf(at("lease_for"), "lease_for goes with consistency: leased; write that, or remove lease_for")
	}
}

func (r *reader) readReplaces(n *yaml.Node) (all []descriptors.Text) {
	r.list(n, "replaces", func(item *yaml.Node) {
		limit := descriptors.Text{At: r.at(item)}
		if readFields(r, item, r.replacesFields, &limit) && limit.Text != "" {
			all = append(all, limit)
		}
	})
	return all
}

// readName reads a text that parse knows the meaning of.
func readName[T any](r *reader, n *yaml.Node, parse func(string) (T, error)) (v T) {
	r.scalar(n, "a text", func(n *yaml.Node) {
		var err error
		if v, err = parse(n.Value); err != nil {
			r.Errorf(r.at(n), "%s: %s", r.field, err)
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

func parseAlgorithm(name string) (limiter.Algorithm, error) {
	a, err := limiter.ParseAlgorithm(name)
	if err == nil {
		return a, nil // looking for a name that is near costs more than all else of a limit
	}
	name = cmp.Or(algorithmSynonyms[strings.ToLower(name)], name)
	return a, fmt.Errorf("%w%s", err, didYouMean(name, limit.AlgorithmNames()))
}

// either reads one of two names, and reports whether it is the second one.
func either(usual, other string) func(name string) (bool, error) {
	return func(name string) (isOther bool, err error) {
		if name != usual && name != other {
			return false, fmt.Errorf("%q is not known: use one of %s, %s", name, usual, other)
		}
		return name == other, nil
	}
}

// named reads the name of a value, of which a type has those from 0 on.
func named[T interface {
	~uint8
	fmt.Stringer
}](name string) (v T, err error) {
	var names []string
	for v := T(0); v == 0 || v.String() != ""; v++ {
		if v.String() == "" { // a default that has no name
			continue
		}
		if v.String() == name {
			return v, nil
		}
		names = append(names, v.String())
	}
	return 0, fmt.Errorf("%q is not known: use one of %s", name, strings.Join(names, ", "))
}

// timeZone finds a time zone by its name. It remembers those of a file, which many rules may name.
func (r *reader) timeZone(name string) (*time.Location, error) {
	if zone := r.zones[name]; zone != nil {
		return zone, nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" || zone == time.Local { // Local is another one on each machine
		return nil, fmt.Errorf("%q is not a known time zone: write its name in the IANA database, such as Europe/Berlin, "+
			"or UTC", name)
	}
	if r.zones == nil {
		r.zones = map[string]*time.Location{}
	}
	r.zones[name] = zone
	return zone, nil
}
