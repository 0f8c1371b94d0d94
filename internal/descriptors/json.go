package descriptors

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// limitJSON shows numbers as they are in effect, and other parameters where they are not the default.
type limitJSON struct {
	ID              int      `json:"id"`
	Name            string   `json:"name,omitempty"`
	Algorithm       string   `json:"algorithm"`
	RequestsPerUnit int64    `json:"requests_per_unit"`
	Window          string   `json:"window"`
	Unit            string   `json:"unit,omitempty"`
	UnitMultiplier  uint32   `json:"unit_multiplier,omitempty"` // where it is not 1
	Capacity        int64    `json:"capacity"`                  // most at once
	Segments        int64    `json:"segments,omitempty"`
	SegmentCap      int64    `json:"segment_cap,omitempty"`
	Oldest          string   `json:"oldest,omitempty"`
	Align           string   `json:"align,omitempty"`
	TimeZone        string   `json:"time_zone,omitempty"`
	Initial         string   `json:"initial,omitempty"`
	Refill          string   `json:"refill,omitempty"`
	Engine          string   `json:"engine,omitempty"`
	Store           string   `json:"store,omitempty"`
	MaxWait         string   `json:"max_wait,omitempty"`
	WarmUp          string   `json:"warm_up,omitempty"`
	ColdFactor      float64  `json:"cold_factor,omitempty"`
	ChargeDenied    string   `json:"charge_denied"`
	Consistency     string   `json:"consistency,omitempty"` // leased
	LeaseFor        string   `json:"lease_for,omitempty"`
	OnStoreFailure  string   `json:"on_store_failure"`
	Replaces        []string `json:"replaces,omitempty"`
}

// MarshalJSON shows the compiled rule for people.
func (r *Rule) MarshalJSON() ([]byte, error) {
	type fields Rule
	return marshal(struct {
		*fields
		Mode string `json:"mode,omitempty"` // shadow or quota
	}{(*fields)(r), unless(r.Mode, limiter.Enforce)})
}

// MarshalJSON shows the limit as it is in effect.
func (l *Limit) MarshalJSON() ([]byte, error) { return marshal(showLimit(l)) }

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(words.Plain{Writer: &b})
	e.SetEscapeHTML(false) // a path's > stays readable if the outer encoder agrees
	err := e.Encode(v)
	return b.Bytes(), err
}

// unless is the value's name, empty for the usual value.
func unless[T interface {
	comparable
	fmt.Stringer
}](value, usual T) string {
	if value == usual {
		return ""
	}
	return value.String()
}

func showLimit(l *Limit) limitJSON {
	p, placement := l.Policy, l.Placement()
	shown := limitJSON{
		ID: l.ID, Name: l.Name, Algorithm: p.Algorithm().String(),
		RequestsPerUnit: p.Limit(), Window: FormatDuration(p.Window()), Capacity: p.Capacity(),
		Unit: unless(l.Unit, UnitUnknown), Segments: l.params.Segments, SegmentCap: l.params.SegmentCap,
		Oldest: unless(l.params.Oldest, limiter.OldestProportional), Align: unless(l.params.Align, limiter.AlignEpoch),
		Store:        placement.Store,
		ChargeDenied: p.Params().ChargeDenied.String(), OnStoreFailure: l.OnStoreFailure.String(), Replaces: l.Replaces,
	}
	if l.UnitMultiplier != 1 {
		shown.UnitMultiplier = l.UnitMultiplier
	}
	if l.params.Align == limiter.AlignCalendar {
		shown.TimeZone = l.params.TimeZone.String() // of nil, too, which is UTC
	}
	if l.params.StartsEmpty {
		shown.Initial = "empty"
	}
	if l.params.RefillsAtOnce {
		shown.Refill = "interval"
	}
	if placement.RedisCell {
		shown.Engine = "redis_cell"
	}
	if p.MaxWait() > 0 {
		shown.MaxWait = FormatDuration(p.MaxWait())
	}
	if placement.LeaseFor > 0 {
		shown.Consistency, shown.LeaseFor = "leased", FormatDuration(placement.LeaseFor)
	}
	if p.Params().WarmUp > 0 {
		shown.WarmUp, shown.ColdFactor = FormatDuration(p.Params().WarmUp), float64(p.Params().ColdFactor)/100
	}
	return shown
}
