// Package metadata makes the dynamic metadata of a response: what Envoy keeps of it under envoy.filters.http.ratelimit,
// for access logs, the filters that come after, and the cost of a request whose stream is done.
package metadata

import (
	"maps"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Costs are what a request says itself of its costs.
type Costs interface {
	// HitsAddend is the request's hits_addend. 0 is none.
	HitsAddend() uint32
	// OwnHitsAddend is the hits_addend of descriptor i, and false if it has none of its own.
	OwnHitsAddend(i int) (hits uint64, ok bool)
}

// Of returns the dynamic metadata of a verdict, nil if there is none. With decide.Config.DynamicMetadata every verdict
// has metadata, not only where a matched rule has `metadata`, and shows the descriptors with their values.
func Of(v *decide.Verdict, costs Costs) *structpb.Struct {
	var fields map[string]any
	if v.DynamicMetadata() || hasMetadata(v) {
		fields = dynamicMetadata(v, costs)
	}
	// Envoy reports the end also of streams that were denied. What their ends read of this metadata, which denied requests
	// do not have and no client can send, refunds what was taken, and no more.
	if leased, token := v.Start(); leased > 0 {
		if fields == nil {
			fields = map[string]any{}
		}
		fields["leased"], fields[decide.StartKey] = leased, token
	}
	if fields == nil {
		return nil
	}
	m, err := structpb.NewStruct(fields)
	if err != nil { // no rule has what a Struct cannot hold, and no request text that is not UTF-8
		return nil
	}
	return m
}

// Append appends the bytes of the metadata.
func Append(dst []byte, m *structpb.Struct) []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(dst, m)
	if err != nil { // Of has made it of what can be encoded
		return dst
	}
	return data
}

// hasMetadata reports whether a matched rule has any.
func hasMetadata(v *decide.Verdict) bool {
	for i := range v.Statuses {
		if r := v.Statuses[i].Rule; r != nil && r.Metadata != nil {
			return true
		}
	}
	return false
}

// dynamicMetadata is what Envoy keeps under envoy.filters.http.ratelimit, for access logs and the filters that
// come after:
//
//	domain               the request's
//	descriptors          one for each: {entries: ["key=value"], hitsAddend: its own, if present}; only with
//	                     DynamicMetadata, since values may be secrets that do not belong in access logs
//	hitsAddend           the request's, if not 0
//	metadata             the `metadata` of the rules whose status is OK, merged: maps key by key, the first
//	                     descriptor wins
//	quotaModeEnabled     true if a limit of a rule with quota_mode applies
//	quotaModeViolations  the indexes of the quota mode descriptors that are over, if any, but for those in shadow_mode
//	violations           each limit that does not fit: {descriptor: its index, rule: its path, limit: its name,
//	                     mode: "enforce", "shadow" or "quota", metadata: the rule's}
//
// All but violations are where readers of envoyproxy/ratelimit's metadata look for them.
func dynamicMetadata(v *decide.Verdict, costs Costs) map[string]any {
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
				quotaOver = append(quotaOver, i)
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
		fields["hitsAddend"] = n
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

// describe shows the descriptors as they came.
func describe(r *decide.Request, costs Costs) []any {
	all := make([]any, len(r.Descriptors))
	for i := range r.Descriptors {
		entries := []any{}
		for _, e := range r.Descriptors[i].Entries {
			entries = append(entries, e.Key+"="+e.Value)
		}
		fields := map[string]any{"entries": entries}
		if hits, ok := costs.OwnHitsAddend(i); ok {
			fields["hitsAddend"] = hits
		}
		all[i] = fields
	}
	return all
}

// violation names the limit of a descriptor's hit that does not fit.
func violation(v *decide.Verdict, descriptor, hit int) map[string]any {
	rule := v.Limits[hit].Rule
	fields := map[string]any{
		"descriptor": descriptor, "rule": rule.Path, "limit": v.Limits[hit].Name, "mode": v.Hits[hit].Mode.String(),
	}
	if rule.Metadata != nil {
		fields["metadata"] = rule.Metadata
	}
	return fields
}

// merge adds the fields of from that to has not: maps key by key. It leaves from as it is.
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
