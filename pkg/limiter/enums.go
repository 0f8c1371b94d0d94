package limiter

// ChargeDenied sets what a denied request is charged by the limit that denied it.
type ChargeDenied uint8

// The values of ChargeDenied.
const (
	ChargeDefault   ChargeDenied = iota // ChargeFull for FixedWindow, ChargeNone for the other algorithms
	ChargeNone                          // no hits
	ChargeRemaining                     // the remaining hits, up to the cost
	ChargeFull                          // the whole cost; hits beyond the limit are debt
)

// Oldest sets how much of the oldest segment of a SlidingWindow counts. Only a part of that segment is inside the
// window.
type Oldest uint8

// The values of Oldest.
const (
	OldestProportional Oldest = iota // the share that is inside the window
	OldestFull                       // the whole segment: no window admits more than the limit
	OldestNone                       // nothing: a window may admit one segment's hits beyond the limit
)

// Align sets where fixed windows begin.
type Align uint8

// The values of Align.
const (
	AlignEpoch    Align = iota // at multiples of the window since the Unix epoch
	AlignFirstHit              // at the first hit
	AlignCalendar              // at the hours, days, weeks, months or years of a time zone's calendar
)

var (
	modeNames         = []string{"enforce", "shadow", "quota"}
	chargeDeniedNames = []string{"", "none", "remaining", "full"}
	oldestNames       = []string{"proportional", "full", "none"}
	alignNames        = []string{"epoch", "first_hit", "calendar"}
)

// String returns the name in rule files, or "" for ChargeDefault and for unknown values.
func (c ChargeDenied) String() string { return nameOf(chargeDeniedNames, c) }

// nameOf returns the name of the value, or "" if the value is unknown.
func nameOf[T ~uint8](names []string, value T) string {
	if int(value) >= len(names) {
		return ""
	}
	return names[value]
}
