package descriptors

import core "github.com/weir-ratelimit/weir/internal/descriptors"

// Descriptor is a rule made in Go. It has the fields of an item of `descriptors` in a rule file, which
// docs/reference/rules.md explains; only Key must be given. Value is the one value that the rule is for, or a pattern
// with *, and Match is another way to choose values. RateLimit is the rule's only limit, or RateLimits are several.
// Descriptors are the rules of requests whose descriptor has more entries. The fields that say where a rule is written
// are for readers of files.
type Descriptor = core.Descriptor

// RateLimit is a limit made in Go. It has the fields of `rate_limit` in a rule file. Params say how the limit counts, as
// limiter.NewPolicy takes them; no Algorithm is FixedWindow. Its window is Params.Window, or UnitMultiplier (0 is 1)
// times Unit. Unlimited stands instead of all of these.
type RateLimit = core.RateLimit

// Matcher chooses the values of a rule. OneOf, InBlocks and MatchingRegex make it.
type Matcher = core.Matcher

// OneOf chooses these values.
func OneOf(values ...string) Matcher { return core.OneOf(values...) }

// InBlocks chooses the IP addresses in these blocks, such as 10.0.0.0/8.
func InBlocks(blocks ...string) Matcher { return core.InBlocks(blocks...) }

// MatchingRegex chooses the values that the RE2 regular expression matches as a whole.
func MatchingRegex(regex string) Matcher { return core.MatchingRegex(regex) }

// Response is what to add to the response to a denied request: Headers and a Body.
type Response = core.Response

// Text is a text, such as the name of a limit in RateLimit.Replaces.
type Text = core.Text

// Header is a header field of a Response: its Name and Value.
type Header = core.Header

// Unit is a unit of time as rule files name it.
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
