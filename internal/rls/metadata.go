package rls

import (
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// dynamicMetadata is what Envoy keeps under envoy.filters.http.ratelimit, for access logs and the filters that
// come after. It is made when a matched rule has `metadata`, or always with Options.DynamicMetadata:
//
//	domain               the request's
//	descriptors          one for each: {entries: ["key=value"], hitsAddend: its own, if present}; only with
//	                     Options.DynamicMetadata, since values may be secrets that do not belong in access logs
//	hitsAddend           the request's, if not 0
//	metadata             the `metadata` of the rules whose status is OK, merged: maps key by key, the first
//	                     descriptor wins
//	quotaModeEnabled     true if a matched rule is in quota mode
//	quotaModeViolations  the indexes of the quota mode descriptors that are over, if any
//	violations           each limit that does not fit: {descriptor: its index, rule: its path, limit: its name,
//	                     mode: "enforce", "shadow" or "quota", metadata: the rule's}
//
// All but violations are where readers of envoyproxy/ratelimit's metadata look for them.
func (sc *scratch) dynamicMetadata() *structpb.Struct {
	passed := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	var asked, quotaOver, violations []*structpb.Value
	quota := false
	for i := range sc.questions {
		q := &sc.questions[i]
		if sc.o.DynamicMetadata {
			asked = append(asked, sc.describe(i))
		}
		if q.rule == nil {
			continue
		}
		own := toStruct(q.rule.Metadata)
		over := false
		for j := q.first; j < q.last; j++ {
			if !sc.out[j].Allowed {
				over = true
				violations = append(violations, sc.violation(i, j, own))
			}
		}
		quota = quota || q.rule.Mode == limiter.Quota
		if over && q.rule.Mode == limiter.Quota {
			quotaOver = append(quotaOver, structpb.NewNumberValue(float64(i)))
		}
		if own != nil && (!over || q.rule.Mode == limiter.Shadow) {
			merge(passed, own)
		}
	}
	fields := map[string]*structpb.Value{
		"domain":           structpb.NewStringValue(sc.domain),
		"quotaModeEnabled": structpb.NewBoolValue(quota),
	}
	if sc.o.DynamicMetadata {
		fields["descriptors"] = list(asked)
	}
	if n := sc.addend; n != 0 {
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

// describe shows descriptor i as it was asked.
func (sc *scratch) describe(i int) *structpb.Value {
	q := &sc.questions[i]
	entries := make([]*structpb.Value, 0, q.to-q.from)
	for _, e := range sc.entries[q.from:q.to] {
		entries = append(entries, structpb.NewStringValue(e.Key+"="+e.Value))
	}
	fields := map[string]*structpb.Value{"entries": list(entries)}
	if q.addend.present {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(q.addend.value))
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: fields})
}

var modeNames = map[limiter.Mode]string{limiter.Enforce: "enforce", limiter.Shadow: "shadow", limiter.Quota: "quota"}

// violation says which limit of descriptor i hit j does not fit.
func (sc *scratch) violation(i, j int, own *structpb.Struct) *structpb.Value {
	fields := map[string]*structpb.Value{
		"descriptor": structpb.NewNumberValue(float64(i)),
		"rule":       structpb.NewStringValue(sc.questions[i].rule.Path),
		"limit":      structpb.NewStringValue(sc.limits[j].Name),
		"mode":       structpb.NewStringValue(modeNames[sc.hits[j].Mode]),
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
