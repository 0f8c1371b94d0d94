package limiter

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

// Align says where fixed windows start.
type Align uint8

// The values of Align.
const (
	AlignEpoch    Align = iota // at multiples of the window since the Unix epoch
	AlignFirstHit              // with the first hit
	AlignCalendar              // with the hours, days, weeks, months or years of a time zone
)

var (
	modeNames         = []string{"enforce", "shadow", "quota"}
	chargeDeniedNames = []string{"", "none", "remaining", "full"}
	oldestNames       = []string{"proportional", "full", "none"}
	alignNames        = []string{"epoch", "first_hit", "calendar"}
)

// String is the name in a rule file, "" of ChargeDefault and of what is none of the values.
func (c ChargeDenied) String() string { return nameOf(chargeDeniedNames, c) }

// nameOf returns the value's name, "" if it is no value.
func nameOf[T ~uint8](names []string, value T) string {
	if int(value) >= len(names) {
		return ""
	}
	return names[value]
}
