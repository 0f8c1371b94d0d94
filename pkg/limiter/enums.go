package limiter

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ChargeDenied says what a denied request takes from the limit that denied it.
type ChargeDenied uint8

// The values of ChargeDenied.
const (
	ChargeDefault   ChargeDenied = iota // full for FixedWindow, none for the others
	ChargeNone                          // nothing
	ChargeRemaining                     // what is left
	ChargeFull                          // all of it, into debt
)

// Oldest says how much of a sliding window's partly expired segment counts.
type Oldest uint8

// The values of Oldest.
const (
	OldestProportional Oldest = iota // the share of it that is still inside the window
	OldestFull                       // all of it: never more than the limit in any window
	OldestNone                       // nothing of it: up to one segment's worth more than the limit
)

// Initial says how a token bucket or SmoothBursty starts.
type Initial uint8

// The values of Initial.
const (
	InitialFull Initial = iota
	// InitialEmpty fills from the first hit on. A bucket that was full for as long as filling takes is empty again.
	InitialEmpty
)

// Refill says how tokens come back.
type Refill uint8

// The values of Refill.
const (
	RefillGreedy   Refill = iota // continuously
	RefillInterval               // Limit at once every Window, counted from the first hit on a full bucket
)

// Align says where fixed windows start.
type Align uint8

// The values of Align.
const (
	AlignEpoch    Align = iota // at multiples of the window since the Unix epoch
	AlignFirstHit              // with the first hit
	AlignCalendar              // with the hours, days, weeks, months or years of a time zone
)

var (
	modeNames         = map[Mode]string{Enforce: "enforce", Shadow: "shadow", Quota: "quota"}
	chargeDeniedNames = map[ChargeDenied]string{ChargeNone: "none", ChargeRemaining: "remaining", ChargeFull: "full"}
	oldestNames       = map[Oldest]string{OldestProportional: "proportional", OldestFull: "full", OldestNone: "none"}
	initialNames      = map[Initial]string{InitialFull: "full", InitialEmpty: "empty"}
	refillNames       = map[Refill]string{RefillGreedy: "greedy", RefillInterval: "interval"}
	alignNames        = map[Align]string{AlignEpoch: "epoch", AlignFirstHit: "first_hit", AlignCalendar: "calendar"}
)

// String is the name in a rule file.
func (c ChargeDenied) String() string { return chargeDeniedNames[c] }

// String is the name in a rule file.
func (o Oldest) String() string { return oldestNames[o] }

// String is the name in a rule file.
func (a Align) String() string { return alignNames[a] }

// String is the name in a rule file.
func (i Initial) String() string { return initialNames[i] }

// String is the name in a rule file.
func (r Refill) String() string { return refillNames[r] }

// ParseInitial is the value of that name.
func ParseInitial(name string) (Initial, error) { return parse(initialNames, name) }

// ParseRefill is the value of that name.
func ParseRefill(name string) (Refill, error) { return parse(refillNames, name) }

// ParseChargeDenied is the value of that name.
func ParseChargeDenied(name string) (ChargeDenied, error) { return parse(chargeDeniedNames, name) }

// ParseOldest is the value of that name.
func ParseOldest(name string) (Oldest, error) { return parse(oldestNames, name) }

// ParseAlign is the value of that name.
func ParseAlign(name string) (Align, error) { return parse(alignNames, name) }

func parse[T ~uint8](known map[T]string, name string) (T, error) {
	for v, n := range known {
		if n == name {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%q is not known: use one of %s", name, strings.Join(names(known), ", "))
}

// names are the map's names in the order of their values.
func names[T ~uint8](known map[T]string) []string {
	var all []string
	for _, v := range slices.Sorted(maps.Keys(known)) {
		all = append(all, known[v])
	}
	return all
}
