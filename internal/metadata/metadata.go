// Package metadata makes the dynamic metadata of a response: what Envoy keeps of it under envoy.filters.http.ratelimit,
// for access logs, the filters that come after, and the cost of a request whose stream is done.
package metadata

import (
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

// Of returns the dynamic metadata of a verdict, nil if there is none. With all, every verdict has metadata, and not
// only where a matched rule has `metadata`, and shows the descriptors with their values.
func Of(v *decide.Verdict, costs Costs, all bool) (m *structpb.Struct) {
	if all || hasMetadata(v) {
		m = dynamicMetadata(v, costs, all)
	}
	if leased := leased(v); leased > 0 {
		if m == nil {
			m = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		}
		m.Fields["leased"] = structpb.NewNumberValue(float64(leased))
	}
	return m
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

// leased is how many hits the request holds of its first concurrency limit. They are given back when its stream is
// done. Envoy reports the end also of streams that were denied. Only a hits_addend that is made of this metadata, which
// a denied request does not have and a client cannot send, gives back exactly what was taken.
func leased(v *decide.Verdict) int64 {
	if v.Denied {
		return 0
	}
	for i := range v.Hits {
		if v.Hits[i].Policy.Algorithm().CountsInFlight() && v.Decisions[i].Allowed && v.Counted(i) {
			return max(0, v.Hits[i].N)
		}
	}
	return 0
}

// dynamicMetadata is what Envoy keeps under envoy.filters.http.ratelimit, for access logs and the filters that
// come after. It is made when a matched rule has `metadata`, or always with all:
//
//	domain               the request's
//	descriptors          one for each: {entries: ["key=value"], hitsAddend: its own, if present}; only with
//	                     all, since values may be secrets that do not belong in access logs
//	hitsAddend           the request's, if not 0
//	metadata             the `metadata` of the rules whose status is OK, merged: maps key by key, the first
//	                     descriptor wins
//	quotaModeEnabled     true if a limit in quota mode applies
//	quotaModeViolations  the indexes of the quota mode descriptors that are over, if any
//	violations           each limit that does not fit: {descriptor: its index, rule: its path, limit: its name,
//	                     mode: "enforce", "shadow" or "quota", metadata: the rule's}
//
// All but violations are where readers of envoyproxy/ratelimit's metadata look for them.
func dynamicMetadata(v *decide.Verdict, costs Costs, all bool) *structpb.Struct {
	passed := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	var quotaOver, violations []*structpb.Value
	hasQuota := false
	for i := range v.Statuses {
		st := &v.Statuses[i]
		if st.Rule == nil {
			continue
		}
		own := toStruct(st.Rule.Metadata)
		isOver := false
		first, last := st.Hits()
		hasQuota = hasQuota || st.Rule.Mode == limiter.Quota && first < last
		for ; first < last; first++ {
			if !v.Decisions[first].Allowed {
				isOver = true
				violations = append(violations, violation(v, first, own))
			}
		}
		if isOver && st.Rule.Mode == limiter.Quota {
			quotaOver = append(quotaOver, structpb.NewNumberValue(float64(i)))
		}
		if own != nil && (!isOver || st.Rule.Mode == limiter.Shadow) {
			merge(passed, own)
		}
	}
	fields := map[string]*structpb.Value{
		"domain":           structpb.NewStringValue(v.Request.Domain),
		"quotaModeEnabled": structpb.NewBoolValue(hasQuota),
	}
	if all {
		fields["descriptors"] = describe(v.Request, costs)
	}
	if n := costs.HitsAddend(); n != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(n))
	}
	if len(passed.GetFields()) > 0 {
		fields["metadata"] = structpb.NewStructValue(passed)
	}
	if len(quotaOver) > 0 {
		fields["quotaModeViolations"] = list(quotaOver)
	}
	if len(violations) > 0 {
		fields["violations"] = list(violations)
	}
	return &structpb.Struct{Fields: fields}
}

// describe shows the descriptors as they came.
func describe(r *decide.Request, costs Costs) *structpb.Value {
	all := make([]*structpb.Value, len(r.Descriptors))
	for i := range r.Descriptors {
		entries := make([]*structpb.Value, 0, len(r.Descriptors[i].Entries))
		for _, e := range r.Descriptors[i].Entries {
			entries = append(entries, structpb.NewStringValue(e.Key+"="+e.Value))
		}
		fields := map[string]*structpb.Value{"entries": list(entries)}
		if hits, ok := costs.OwnHitsAddend(i); ok {
			fields["hitsAddend"] = structpb.NewNumberValue(float64(hits))
		}
		all[i] = structpb.NewStructValue(&structpb.Struct{Fields: fields})
	}
	return list(all)
}

// violation names the limit of a hit that does not fit.
func violation(v *decide.Verdict, hit int, own *structpb.Struct) *structpb.Value {
	descriptor := v.Hits[hit].Group
	fields := map[string]*structpb.Value{
		"descriptor": structpb.NewNumberValue(float64(descriptor)),
		"rule":       structpb.NewStringValue(v.Statuses[descriptor].Rule.Path),
		"limit":      structpb.NewStringValue(v.Limits[hit].Name),
		"mode":       structpb.NewStringValue(v.Hits[hit].Mode.String()),
	}
	if own != nil {
		fields["metadata"] = structpb.NewStructValue(own)
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: fields})
}

// merge adds the fields of from that to has not: maps key by key. It leaves from as it is.
func merge(to, from *structpb.Struct) {
	for k, v := range from.GetFields() {
		old, ok := to.GetFields()[k]
		if !ok {
			to.Fields[k] = v
			continue
		}
		if o, f := old.GetStructValue(), v.GetStructValue(); o != nil && f != nil {
			both := &structpb.Struct{Fields: map[string]*structpb.Value{}}
			merge(both, o)
			merge(both, f)
			to.Fields[k] = structpb.NewStructValue(both)
		}
	}
}

// toStruct is the rule's metadata; nil if there is none. The rule language admits only what a Struct can hold.
func toStruct(m map[string]any) *structpb.Struct {
	if m == nil {
		return nil
	}
	s, err := structpb.NewStruct(m)
	if err != nil {
		return nil
	}
	return s
}

func list(values []*structpb.Value) *structpb.Value {
	return structpb.NewListValue(&structpb.ListValue{Values: values})
}
