//go:build e2e

package peer

import (
	"math/rand/v2"
	"slices"
	"strings"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// randomRequest asks the rules of a domain: mostly what they name, sometimes what none of them does.
func randomRequest(rng *rand.Rand, domain string, rules []*rule, s style) *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: domain}
	if chance(rng, 4) {
		req.HitsAddend = pick(rng, []uint32{1, 2, 3, 8, 1000, 4_294_967_295})
	}
	for range 1 + rng.IntN(4) {
		req.Descriptors = append(req.Descriptors, randomDescriptor(rng, rules, s))
	}
	if s.noTwice {
		req.Descriptors = differentCounters(req.GetDescriptors())
	} else if chance(rng, 8) {
		req.Descriptors = append(req.Descriptors, req.GetDescriptors()[0]) // one counter twice
	}
	return req
}

func randomDescriptor(rng *rand.Rand, rules []*rule, s style) *commonpb.RateLimitDescriptor {
	d := &commonpb.RateLimitDescriptor{}
	for len(rules) > 0 {
		r := pick(rng, rules)
		d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: r.key, Value: askedValue(rng, r)})
		rules = r.children
		if r.limit != nil && !chance(rng, 3) {
			break
		}
	}
	if chance(rng, 12) { // deeper than the rules
		d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: pick(rng, keys), Value: pick(rng, askValues)})
	}
	if chance(rng, 5) {
		d.HitsAddend = wrapperspb.UInt64(pick(rng, []uint64{0, 0, 1, 2, 5, 1000, 1_000_000_000}))
	}
	if !s.noLimits && chance(rng, 6) {
		d.Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: pick(rng, rates), Unit: typepb.RateLimitUnit(1 + rng.IntN(6)),
		}
	}
	return d
}

// askedValue is a value for the rule's key.
func askedValue(rng *rand.Rand, r *rule) string {
	prefix, isPattern := strings.CutSuffix(r.value, "*")
	switch {
	case chance(rng, 6) || r.value == "" && chance(rng, 2):
		return pick(rng, askValues)
	case r.value == "":
		return "x"
	case isPattern:
		return prefix + pick(rng, []string{"", "1", "q"})
	}
	return r.value
}

// differentCounters leaves out descriptors that may share a counter with one before: those with as many entries and the
// same keys.
func differentCounters(all []*commonpb.RateLimitDescriptor) []*commonpb.RateLimitDescriptor {
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(d *commonpb.RateLimitDescriptor) bool {
		var keys []string
		for _, e := range d.GetEntries() {
			keys = append(keys, e.GetKey())
		}
		id := strings.Join(keys, ",")
		again := seen[id]
		seen[id] = true
		return again
	})
}
