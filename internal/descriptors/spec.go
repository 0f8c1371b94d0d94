package descriptors

import (
	"strconv"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Descriptor says what a rule is: it is one item of a rule file's `descriptors`, and docs/reference/rules.md explains the
// fields, which have the same names there. Only Key must be given. A Builder does not keep a Descriptor, nor change
// it.
type Descriptor struct {
	Key string
	// Value is the one value that the rule is for, or a pattern with *. Match is another way to choose values.
	// Without both the rule is for all values that no other rule of the key matches.
	Value string
	Match Matcher

	RateLimit   *RateLimit    // the rule's only limit
	RateLimits  []*RateLimit  // or several, which a request must all pass
	Descriptors []*Descriptor // rules of requests whose descriptor has more entries

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

	// Lenient takes key and value as envoyproxy/ratelimit does, of rules that a program has made: * in the key stands for
	// itself, and no warning guesses what was meant by the value.
	Lenient bool

	// At is where the descriptor is written, and ValueAt and ShareAt where its value and share_threshold are. If At.File
	// is empty, as for rules that a Go program makes, messages name the domain and the path.
	At, ValueAt, ShareAt Position
	// Invalid is set by a reader that has reported a problem with the key or the domain.
	Invalid bool
}

// Form is how a Matcher chooses values: by the name of the field in a rule file.
type Form string

// The forms.
const (
	FormValues Form = "values"
	FormFile   Form = "values_file"
	FormCIDR   Form = "cidr"
	FormRegex  Form = "regex"
)

// Matcher chooses the values of a rule. The zero Matcher chooses none: Descriptor.Value does.
type Matcher struct {
	Form   Form
	Items  []Text // values or blocks; else the one file or regex
	Listed []Text // FormFile: what the file lists
	At     Position
}

// OneOf chooses these values.
func OneOf(values ...string) Matcher { return Matcher{Form: FormValues, Items: Texts(values...)} }

// InBlocks chooses the addresses in these blocks, such as 10.0.0.0/8.
func InBlocks(blocks ...string) Matcher { return Matcher{Form: FormCIDR, Items: Texts(blocks...)} }

// MatchingRegex chooses the values that the RE2 regular expression matches as a whole.
func MatchingRegex(regex string) Matcher { return Matcher{Form: FormRegex, Items: Texts(regex)} }

// RateLimit says what a limit is: it is `rate_limit` of a rule file, or one item of its `rate_limits`.
type RateLimit struct {
	// Params are how the limit counts, as limiter.NewPolicy takes them, but that no Algorithm is FixedWindow. Without a
	// Limit, DenyAll must be set. Window is either given there, or by Unit and UnitMultiplier, of which 0 is 1. Without
	// both, that of Concurrency is DefaultLease.
	Params limiter.Params
	// Placement says where it is counted.
	Placement      Placement
	Unit           Unit
	UnitMultiplier int64
	// Unlimited is instead of all of these.
	Unlimited bool

	Name     string
	Replaces []Text // names of limits
	// OnStoreFailure is nil for that of the process.
	OnStoreFailure *OnStoreFailure

	At Position
	// Fields are those that are written, of a limit that was read from a text.
	Fields []Field
	// Misspelled are the fields that unknown ones seem to stand for: a message does not call them missing.
	Misspelled []string
	// Invalid is set by a reader that has reported a problem with a field.
	Invalid bool
}

// Field is where a field is written.
type Field struct {
	Name string
	At   Position
}

// Text is a text, and where it is written.
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

// String is "file:line:column", or the file alone if it has no lines.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column)
}

// line is "file:line", or the file alone if it has no lines.
func (p Position) line() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line)
}

// given are the fields of a limit that a Go program made at that place: those that are not zero.
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
	add("window", p.Window != 0 && !p.Algorithm.CountsInFlight()) // whose window is the lease
	for _, param := range p.Algorithm.Parameters() {
		add(param.Name, param.Get(p) != 0)
	}
	add("lease_for", l.Placement.LeaseFor != 0)
	add("consistency", l.Placement.LeaseFor != 0)
	add("store", l.Placement.Store != "")
	add("on_store_failure", l.OnStoreFailure != nil)
	return all
}
