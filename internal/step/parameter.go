package step

import (
	"fmt"
	"reflect"
	"time"
)

// Parameter describes one parameter of a limit, for the code that reads, checks or shows limits. P is limiter.Params.
type Parameter[P any] struct {
	// Name is the name of the field in rule files.
	Name string
	// At returns a pointer to the integer, time.Duration, index of Names, bool or *time.Location. Zero means the default.
	At func(*P) any
	// Least and Most are the bounds of a value other than the default. A Step above 0 must divide the value.
	Least, Most, Step int64
	// Scale, if not 0, means that rule files have a decimal number, which is multiplied by Scale.
	Scale int64
	// Names are the names of the values; "" is a default without a name. Nil means that the values have no names.
	Names []string
}

// Get returns an integer, nanoseconds, an index of Names, or 1 for true or a given time zone. 0 means the default.
func (p *Parameter[P]) Get(in *P) int64 {
	switch at := reflect.ValueOf(p.At(in)).Elem(); {
	case at.CanInt():
		return at.Int()
	case at.CanUint():
		return int64(at.Uint()) //nolint:gosec // there are few names
	case !at.IsZero():
		return 1
	}
	return 0
}

// Set sets the value, in the form of Get. The parameter must not be a time zone.
func (p *Parameter[P]) Set(in *P, value int64) {
	switch at := reflect.ValueOf(p.At(in)).Elem(); {
	case at.CanInt():
		at.SetInt(value)
	case at.CanUint():
		at.SetUint(uint64(value)) //nolint:gosec // there are few names
	default:
		at.SetBool(value == 1)
	}
}

// IsTime reports whether the parameter is a duration.
func (p *Parameter[P]) IsTime() bool {
	_, is := p.At(new(P)).(*time.Duration)
	return is
}

// IsZone reports whether the parameter is a time zone.
func (p *Parameter[P]) IsZone() bool {
	_, is := p.At(new(P)).(**time.Location)
	return is
}

// Shown returns a value in the form of rule files: one of Names, a decimal number, a time.Duration or an integer.
func (p *Parameter[P]) Shown(value int64) any {
	switch {
	case p.Names != nil:
		return p.Names[value]
	case p.Scale != 0:
		return float64(value) / float64(p.Scale)
	case p.IsTime():
		return time.Duration(value)
	default:
		return value
	}
}

// String returns the name.
func (p Parameter[P]) String() string { return p.Name }

// Names returns the names of algorithms or parameters, for messages.
func Names[T fmt.Stringer](all []T) (names []string) {
	for _, one := range all {
		names = append(names, one.String())
	}
	return names
}
