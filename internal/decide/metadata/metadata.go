// Package metadata builds the dynamic metadata of a response. Envoy keeps it under envoy.filters.http.ratelimit for
// access logs, for later filters, and for the rate limit call at the end of a request's stream.
package metadata

import (
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Costs has the costs that a request carries.
type Costs interface {
	// HitsAddend returns the request's hits_addend, 0 if it is not set.
	HitsAddend() uint32
	// OwnHitsAddend returns the hits_addend of descriptor i; ok is false if the descriptor has none.
	OwnHitsAddend(i int) (hits uint64, ok bool)
}

// Append appends the dynamic metadata of a verdict, an encoded google.protobuf.Struct, to dst. Without metadata it
// appends nothing. Without decide.Config.DynamicMetadata, only requests that match a rule with `metadata` get more than
// a token, and descriptor values are left out.
func Append(dst []byte, v *decide.Verdict, costs Costs) []byte {
	// Envoy also reports the end of denied streams. The report takes its cost and token from this metadata, so a denied
	// request, which gets neither, releases nothing. Clients cannot set this metadata.
	leased, token := v.Start()
	switch {
	case v.DynamicMetadata() || hasMetadata(v):
		dst = appendStruct(dst, dynamicMetadata(v, costs, leased))
	case leased > 0:
		dst = appendField(dst, "leased", appendValue(nil, float64(leased)))
	}
	if token != "" { // the last key
		dst = appendField(dst, decide.StartKey, appendBytes(make([]byte, 0, 512), 3, token))
	}
	return dst
}

func hasMetadata(v *decide.Verdict) bool {
	for i := range v.Statuses {
		if r := v.Statuses[i].Rule; r != nil && r.Metadata != nil {
			return true
		}
	}
	return false
}

// dynamicMetadata returns these fields:
//
//	domain               domain of the request
//	descriptors          per descriptor {entries: ["key=value"], hitsAddend: its own, if present}; only with
//	                     DynamicMetadata, because values may be secrets that do not belong in access logs
//	hitsAddend           hits_addend of the request, if not 0
//	leased               the argument, if not 0
//	metadata             `metadata` of the rules whose status is OK, merged key by key; the first descriptor wins
//	quotaModeEnabled     true if a limit of a rule with quota_mode applies
//	quotaModeViolations  indexes of the quota mode descriptors that are over their quota, except those in shadow_mode
//	violations           per limit that does not fit {descriptor: index, rule: path, limit: name,
//	                     mode: "enforce", "shadow" or "quota", metadata: `metadata` of the rule}
//
// All fields except violations have the names of envoyproxy/ratelimit's metadata.
func dynamicMetadata(v *decide.Verdict, costs Costs, leased int64) map[string]any {
	passed := map[string]any{}
	var quotaOver, violations []any
	hasQuota := false
	for i := range v.Statuses {
		st, isOver := &v.Statuses[i], false
		for hit, last := st.Hits(); hit < last; hit++ {
			rule := v.Limits[hit].Rule
			hasQuota = hasQuota || rule.QuotaMode
			if v.Decisions[hit].Allowed {
				continue
			}
			violations = append(violations, violation(v, i, hit))
			if !isOver && !rule.ShadowMode && (rule.QuotaMode || v.Domain.QuotaMode()) {
				quotaOver = append(quotaOver, float64(i))
			}
			isOver = true
		}
		if st.Rule != nil && (!isOver || st.Rule.Mode == limiter.Shadow) {
			merge(passed, st.Rule.Metadata)
		}
	}
	fields := map[string]any{"domain": v.Request.Domain, "quotaModeEnabled": hasQuota}
	if v.DynamicMetadata() {
		fields["descriptors"] = describe(v.Request, costs)
	}
	if n := costs.HitsAddend(); n != 0 {
		fields["hitsAddend"] = float64(n)
	}
	if leased > 0 {
		fields["leased"] = float64(leased)
	}
	if len(passed) > 0 {
		fields["metadata"] = passed
	}
	if len(quotaOver) > 0 {
		fields["quotaModeViolations"] = quotaOver
	}
	if len(violations) > 0 {
		fields["violations"] = violations
	}
	return fields
}

func describe(r *decide.Request, costs Costs) []any {
	all := make([]any, len(r.Descriptors))
	for i := range r.Descriptors {
		entries := []any{}
		for _, e := range r.Descriptors[i].Entries {
			entries = append(entries, e.Key+"="+e.Value)
		}
		fields := map[string]any{"entries": entries}
		if hits, ok := costs.OwnHitsAddend(i); ok {
			fields["hitsAddend"] = float64(hits)
		}
		all[i] = fields
	}
	return all
}

// violation describes the limit of a hit that does not fit.
func violation(v *decide.Verdict, descriptor, hit int) map[string]any {
	rule := v.Limits[hit].Rule
	fields := map[string]any{
		"descriptor": float64(descriptor), "rule": rule.Path, "limit": v.Limits[hit].Name,
		"mode": v.Hits[hit].Mode.String(),
	}
	if rule.Metadata != nil {
		fields["metadata"] = rule.Metadata
	}
	return fields
}

// merge adds to `to` the fields that only `from` has, and merges maps key by key. It does not change `from`.
func merge(to, from map[string]any) {
	for k, v := range from {
		old, ok := to[k]
		if !ok {
			to[k] = v
			continue
		}
		o, isMap := old.(map[string]any)
		f, areMaps := v.(map[string]any)
		if isMap && areMaps {
			both := maps.Clone(o)
			merge(both, f)
			to[k] = both
		}
	}
}

// appendStruct appends a Struct with the same bytes as google.golang.org/protobuf, but allocates much less. The values
// must have the types that encoding/json decodes.
func appendStruct(dst []byte, fields map[string]any) []byte {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		dst = appendField(dst, key, appendValue(nil, fields[key]))
	}
	return dst
}

// appendField appends a field of a Struct. value is an encoded Value.
func appendField(dst []byte, key string, value []byte) []byte {
	size := uint64(2 + protowire.SizeBytes(len(key)) + protowire.SizeBytes(len(value))) //nolint:gosec // above 0
	dst = protowire.AppendVarint(protowire.AppendTag(dst, 1, protowire.BytesType), size)
	return appendBytes(appendBytes(dst, 1, key), 2, value)
}

func appendValue(dst []byte, value any) []byte {
	switch v := value.(type) {
	case float64:
		return protowire.AppendFixed64(protowire.AppendTag(dst, 2, protowire.Fixed64Type), math.Float64bits(v))
	case string:
		return appendBytes(dst, 3, v)
	case bool:
		return protowire.AppendVarint(protowire.AppendTag(dst, 4, protowire.VarintType), protowire.EncodeBool(v))
	case map[string]any:
		return appendBytes(dst, 5, appendStruct(nil, v))
	case []any:
		var list []byte
		for _, item := range v {
			list = appendBytes(list, 1, appendValue(nil, item))
		}
		return appendBytes(dst, 6, list)
	default: // nil
		return protowire.AppendVarint(protowire.AppendTag(dst, 1, protowire.VarintType), 0)
	}
}

func appendBytes[T string | []byte](dst []byte, field protowire.Number, value T) []byte {
	dst = protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.BytesType), uint64(len(value)))
	return append(dst, value...)
}
