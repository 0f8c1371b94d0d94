package descriptors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// MarshalJSON returns the compiled rule for display.
func (r *Rule) MarshalJSON() ([]byte, error) {
	type fields Rule
	return marshal(struct {
		*fields
		Mode any `json:"mode,omitempty"` // shadow or quota
	}{(*fields)(r), unless(r.Mode, limiter.Enforce)})
}

// MarshalJSON returns the limit for display, with the parameters that its rule sets.
func (l *Limit) MarshalJSON() ([]byte, error) {
	text := []byte{'{'}
	for _, m := range l.shown() {
		if m.value == nil {
			continue
		}
		value, err := marshal(m.value)
		if err != nil {
			return nil, err
		}
		text = fmt.Appendf(text, "%q:%s,", m.name, value)
	}
	text[len(text)-1] = '}' // in place of the last comma
	return text, nil
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(words.Plain{Writer: &b})
	e.SetEscapeHTML(false) // a path's > stays readable if the outer encoder agrees
	err := e.Encode(v)
	return b.Bytes(), err
}

// member is a field of a limit in JSON. It is left out if value is nil.
type member struct {
	name  string
	value any
}

// unless returns the value, or its name if it has one, but nil if it equals usual.
func unless[T comparable](value, usual T) any {
	if value == usual {
		return nil
	}
	switch v := any(value).(type) {
	case time.Duration:
		return FormatDuration(v)
	case fmt.Stringer:
		return v.String()
	}
	return value
}

func (l *Limit) shown() []member {
	p, placement := l.Policy, l.Placement()
	all := []member{
		{"id", l.ID},
		{"name", unless(l.Name, "")},
		{"algorithm", p.Algorithm().String()},
		{"requests_per_unit", p.Limit()},
		{"window", FormatDuration(p.Window())},
		{"unit", unless(l.Unit, UnitUnknown)},
		{"unit_multiplier", unless(max(l.UnitMultiplier, 1), 1)},
		{"capacity", p.Capacity()}, // most at once
	}
	for _, param := range p.Algorithm().Parameters() {
		switch v := param.Get(l.params); {
		case v == 0 || param.Name == "charge_denied":
		case param.IsZone():
			all = append(all, member{param.Name, l.params.TimeZone.String()})
		default:
			all = append(all, member{param.Name, unless(param.Shown(v), nil)})
		}
	}
	all = append(all,
		member{"store", unless(placement.Store, "")},
		member{"charge_denied", p.Params().ChargeDenied.String()},
		member{"lease_for", unless(placement.LeaseFor, 0)},
		member{"on_store_failure", l.OnStoreFailure.String()},
		member{"default", unless(l.Default, "")})
	if placement.RedisCell {
		all = append(all, member{"engine", "redis_cell"})
	}
	if placement.Regions {
		all = append(all, member{"scope", "regions"})
	}
	if region := l.Rule.process.Region; placement.Regions && region != "" {
		all = append(all, member{"part", fmt.Sprintf("%d%% in %s", l.Rule.process.percent(), region)})
	}
	if placement.LeaseFor > 0 {
		all = append(all, member{"consistency", "leased"})
	}
	if r := l.Reservation; r != nil {
		shown := struct {
			Estimate int64  `json:"estimate"`
			AtMost   int64  `json:"at_most"`
			Ends     string `json:"ends,omitempty"`
		}{Estimate: r.Estimate, AtMost: r.AtMost}
		if r.EndsByCost {
			shown.Ends = "cost"
		}
		all = append(all, member{"reservation", shown})
	}
	if len(l.Replaces) > 0 {
		all = append(all, member{"replaces", l.Replaces})
	}
	return all
}
