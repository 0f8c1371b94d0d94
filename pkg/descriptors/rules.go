package descriptors

import core "github.com/weir-ratelimit/weir/internal/descriptors"

// Descriptor is a rule that a Go program makes. It has the fields of an item of `descriptors` in a rule file, see
// docs/reference/rules.md. Only Key is required. Value selects one value, or values by a pattern with *, and Match
// selects values in other ways. RateLimit is the rule's only limit, and RateLimits are several limits. Descriptors are
// the rules for descriptors with more entries. The fields for positions in files are only for packages that read files.
type Descriptor = core.Descriptor

// RateLimit is a limit that a Go program makes. It has the fields of `rate_limit` in a rule file. Params are the
// parameters for limiter.NewPolicy; without an Algorithm, the limit is a FixedWindow. The window is Params.Window, or
// UnitMultiplier (0 means 1) times Unit. Unlimited replaces all of these fields.
type RateLimit = core.RateLimit

// Reservation is the `reservation` of a RateLimit, in hits: a request is charged Estimate at its start, or up to AtMost
// if it says so, and its real cost at its end.
type Reservation = core.Reservation

// Matcher selects the values of a rule. OneOf, InBlocks and MatchingRegex return Matchers.
type Matcher = core.Matcher

// OneOf selects the given values.
func OneOf(values ...string) Matcher { return core.OneOf(values...) }

// InBlocks selects the IP addresses in the given blocks, such as 10.0.0.0/8.
func InBlocks(blocks ...string) Matcher { return core.InBlocks(blocks...) }

// MatchingRegex selects the values that the RE2 regular expression matches as a whole.
func MatchingRegex(regex string) Matcher { return core.MatchingRegex(regex) }

// Response holds the Headers and the Body that a rule adds to the response to a denied request.
type Response = core.Response

// Text is a string of a rule, such as the name of a limit in RateLimit.Replaces.
type Text = core.Text

// Header is a header field of a Response: its Name and Value.
type Header = core.Header

// Unit is a unit of time, with the names of rule files.
type Unit = core.Unit

// The units.
const (
	Second = core.Second
	Minute = core.Minute
	Hour   = core.Hour
	Day    = core.Day
	Week   = core.Week
	Month  = core.Month // 30 days
	Year   = core.Year  // 365 days
)
