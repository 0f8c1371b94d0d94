package step

import (
	"fmt"
	"reflect"
	"time"
)

// Parameter is one row of the table of a limit's parameters: what P, the parameters of a limit, has besides the rate.
// Readers of rules, checks and what shows a limit walk the table.
type Parameter[P any] struct {
	// Name is that of the field in rule files.
	Name string
	// At returns a pointer to the parameter: a number, time.Duration, value of Names, bool or *time.Location. Its zero
	// value stands for the default.
	At func(*P) any
	// Least and Most are the bounds of what is given. It is a multiple of Step, unless that is 0.
	Least, Most, Step int64
	// Scale, if not 0, is what 1 in rule files stands for: they have a decimal number.
	Scale int64
	// Names are the values by their numbers, "" for a default without a name. Nil: the value is no name.
	Names []string
}

// Get returns the value: a number, nanoseconds, an index of Names, or, of a time zone, whether it is given. It is 0 for
// the default.
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

// Set sets the value, which is as Get returns it, of a parameter that is no time zone.
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

// Shown returns what a value is in a rule file: a text of Names, a decimal number, a time.Duration or a number.
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

// String is the name.
func (p Parameter[P]) String() string { return p.Name }

// Names are the names of algorithms or parameters, as a message lists them.
func Names[T fmt.Stringer](all []T) (names []string) {
	for _, one := range all {
		names = append(names, one.String())
	}
	return names
}
