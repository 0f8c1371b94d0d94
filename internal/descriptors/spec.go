package descriptors

import (
	"strconv"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Descriptor is the source of a rule: an item of a rule file's `descriptors`. docs/reference/rules.md explains its
// fields under the same names. Only Key is required. A Builder neither keeps nor changes a Descriptor.
type Descriptor struct {
	Key string
	// Value is the value that the rule matches, or a pattern with *. Match is another way to choose values. Without both,
	// the rule matches all values that no other rule of the key matches.
	Value string
	Match Matcher

	RateLimit   *RateLimit    // the only limit
	RateLimits  []*RateLimit  // several limits, all of which must admit a request
	Descriptors []*Descriptor // rules for further entries of a descriptor

	ShadowMode     bool
	QuotaMode      bool
	ShareThreshold bool
	HashValues     bool
	DetailedMetric bool
	ValueToMetric  bool

	Response    *Response
	Metadata    map[string]any // values as encoding/json decodes them
	Description string
	Owner       string
	Extra       map[string]any // x-* fields

	// Lenient accepts key and value like envoyproxy/ratelimit, for rules that a program generates: * in the key is an
	// ordinary character, and there is no warning about a value that looks like a regex.
	Lenient bool

	// At is the position of the descriptor, ValueAt of its value and ShareAt of its share_threshold. If At.File is empty,
	// as for rules of a Go program, messages name the domain and the path.
	At, ValueAt, ShareAt Position
	// Invalid is set by a reader that has reported an error of the key or the domain.
	Invalid bool
}

// Form is the way in which a Matcher chooses values, named after the field in a rule file.
type Form string

// Values of Form.
const (
	FormValues Form = "values"
	FormFile   Form = "values_file"
	FormCIDR   Form = "cidr"
	FormRegex  Form = "regex"
)

// Matcher chooses the values of a rule. The zero Matcher means that Descriptor.Value chooses them.
type Matcher struct {
	Form   Form
	Items  []Text // the values, the CIDR blocks, the only file or the only regex, by Form
	Listed []Text // values in the file of FormFile
	At     Position
}

// OneOf matches these values.
func OneOf(values ...string) Matcher { return Matcher{Form: FormValues, Items: Texts(values...)} }

// InBlocks matches the addresses in these blocks, such as 10.0.0.0/8.
func InBlocks(blocks ...string) Matcher { return Matcher{Form: FormCIDR, Items: Texts(blocks...)} }

// MatchingRegex matches the values that the RE2 regular expression matches as a whole.
func MatchingRegex(regex string) Matcher { return Matcher{Form: FormRegex, Items: Texts(regex)} }

// RateLimit is the source of a limit: `rate_limit` in a rule file, or an item of `rate_limits`.
type RateLimit struct {
	// Params are the parameters for limiter.NewPolicy, except that Algorithm may be 0, which means FixedWindow. If Limit
	// is 0, DenyAll must be set. The window is set by Params.Window or by Unit and UnitMultiplier (0 means 1). Without a
	// window, Concurrency has DefaultLease.
	Params limiter.Params
	// Placement says which store counts the limit, and who decides.
	Placement Placement
	// Reservation is nil for costs that are known when the request arrives.
	Reservation    *Reservation
	Unit           Unit
	UnitMultiplier int64
	// Unlimited excludes all fields above.
	Unlimited bool

	Name     string
	Replaces []Text // names of the limits that this limit replaces
	// OnStoreFailure is nil for the policy of the process.
	OnStoreFailure *OnStoreFailure

	At Position
	// Fields has the fields that are given, if the limit was read from a text.
	Fields []Field
	// Misspelled has the fields that unknown fields seem to mean, so that messages do not call them missing.
	Misspelled []string
	// Invalid is set by a reader that has reported an error of a field.
	Invalid bool
}

// Field is a field's name and position.
type Field struct {
	Name string
	At   Position
}

// Text is a text and its position.
type Text struct {
	Text string
	At   Position
}

// Texts returns the texts without positions.
func Texts(texts ...string) []Text {
	all := make([]Text, len(texts))
	for i, text := range texts {
		all[i].Text = text
	}
	return all
}

// Position is a line and column of a source of rules, both from 1. They are 0 if the source has no lines.
type Position struct {
	File         string
	Line, Column int
}

// String returns "file:line:column", or the file alone if it has no lines.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column)
}

// line returns "file:line", or the file alone if it has no lines.
func (p Position) line() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line)
}

// given returns the fields of a limit that a Go program made: those that are not zero, with the position at.
func (l *RateLimit) given(at Position) (all []Field) {
	add := func(name string, isGiven bool) {
		if isGiven {
			all = append(all, Field{name, at})
		}
	}
	p := &l.Params
	add("requests_per_unit", p.Limit != 0 || p.DenyAll)
	add("algorithm", p.Algorithm != 0)
	add("unit", l.Unit != UnitUnknown)
	add("unit_multiplier", l.UnitMultiplier != 0)
	add("window", p.Window != 0 && !p.Algorithm.CountsInFlight()) // the window of concurrency is its lease
	for _, param := range p.Algorithm.Parameters() {
		add(param.Name, param.Get(p) != 0)
	}
	add("lease_for", l.Placement.LeaseFor != 0)
	add("consistency", l.Placement.LeaseFor != 0)
	add("store", l.Placement.Store != "")
	add("scope", l.Placement.Regions)
	add("reservation", l.Reservation != nil)
	add("on_store_failure", l.OnStoreFailure != nil)
	return all
}
