// Package descriptors implements the rule language of Weir: it checks rules, compiles them into an immutable [Set], and
// matches a request's descriptors against the Set without allocating. Go programs use pkg/descriptors instead.
//
// A Set has domains, a [Domain] is a tree of rules, and a [Rule] has limits. A [Builder] builds a Set from descriptors,
// which package rulefile reads from YAML files, and internal/rules/xds from a control plane.
//
// A request has a domain and descriptors, each a list of entries. [Domain.Match] finds the rule of a descriptor. Each
// [Limit] of the rule has a Policy, and [Limit.AppendKey] returns the key of its counter; both are part of a
// [limiter.Hit]. internal/decide makes the hits, and handles shadow and quota mode, replaces and failure policies.
//
// [Domain].Root, [Node] and [Branch] expose the tree for display. [Set.Warnings] lists rules that are valid but may not
// do what their author meant. [ParseEntries] parses descriptors that people write; [ParseKey] parses counters' keys.
//
// This package does not know YAML, protobuf, stores or the location of files.
package descriptors

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Entry is one key and value of a request's descriptor.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Set holds the compiled rules of all files. It is immutable and safe for concurrent use.
type Set struct {
	domains map[string]*Domain
	sorted  []*Domain
	limits  []*Limit

	warnings Errors
	process  *Process
}

// Domain is the tree of rules of one domain of Envoy's filter. It is immutable and safe for concurrent use.
type Domain struct {
	name  string
	id    int     // index in Set.Domains
	Root  Node    // root of the tree, at which the first entry of a descriptor is matched
	rules []*Rule // in file order
	own   *Rule   // rule for requests that bring their own limits and match no rule
	long  *Rule   // rule of values that are too long to decide which pattern they match

	findPaths sync.Once
	paths     map[string]*Rule
}

// Rule is one node of a domain's tree, for descriptors that end at this node.
type Rule struct {
	Domain string `json:"-"`
	// Path is the rule's name for people: "remote_address", or "api_key > path=/checkout*".
	Path string `json:"path"`
	// Source is the rule's position in a file, as "file:line".
	Source string `json:"source"`
	// Mode is Shadow with shadow_mode, else Quota with quota_mode, else Enforce.
	Mode limiter.Mode `json:"-"`
	// Unlimited is the rule's `unlimited`.
	Unlimited bool `json:"unlimited,omitempty"`
	// Replaces has the names of the limits that an unlimited rule replaces in a request. It is nil for other rules.
	Replaces []string `json:"replaces,omitempty"`
	// Limits must all admit a request. A rule may have no limits.
	Limits []*Limit `json:"limits,omitempty"`
	// The fields of the same names.
	ShadowMode     bool `json:"-"`
	QuotaMode      bool `json:"-"`
	ShareThreshold bool `json:"share_threshold,omitempty"`
	HashValues     bool `json:"hash_values,omitempty"`
	// Metadata is the rule's `metadata`, with values as encoding/json decodes them; nil if there is none.
	Metadata map[string]any `json:"metadata,omitempty"`
	// Response has additions to the response if the rule denies a request; may be nil.
	Response *Response `json:"response,omitempty"`
	// Description and Owner are for people.
	Description string `json:"description,omitempty"`
	Owner       string `json:"owner,omitempty"`
	// Extra has the descriptor's x-* fields, which Weir ignores, with values as encoding/json decodes them.
	Extra map[string]any `json:"extra,omitempty"`

	depth   int     // number of entries that lead to the rule
	levels  []level // levels of these entries; missing levels are zero
	tooLong bool    // see IsTooLong
	process *Process
}

// Limit is one limit of a rule.
type Limit struct {
	// ID is the limit's index in Set.Limits, or -1 for a limit of Override that is based on no limit of a rule.
	ID int
	// Name is the limit's `name`, to which `replaces` refers. It may be empty.
	Name string
	// Policy counts and decides.
	Policy *limiter.Policy
	// Unit and UnitMultiplier are the window in the form for Envoy: Window = Unit x UnitMultiplier. Unit is UnitUnknown if
	// the window is not a multiple of a unit.
	Unit           Unit
	UnitMultiplier uint32
	// Replaces has the names of the limits that this limit replaces in a request.
	Replaces []string
	// OnStoreFailure decides requests while the store fails.
	OnStoreFailure OnStoreFailure
	// Local is this process's share of the limit, for local counting while the store fails; nil without local counting.
	Local *limiter.Policy
	// Rule is the rule of the limit.
	Rule *Rule
	// Reservation is nil for costs that are known when the request arrives. Ends then is the policy that charges what a
	// request cost in addition to its charge at the start; it shares the counter of Policy, and always charges.
	Reservation *Reservation
	Ends        *limiter.Policy
	// Default is the file and line of the `defaults` that changed this limit, or empty.
	Default string

	params    *limiter.Params // shared with other limits: must not be changed
	placement *Placement      // shared like params; nil for the zero Placement
	keyStart  string
}

// OnStoreFailure is the failure policy of a limit.
type OnStoreFailure uint8

// Values of OnStoreFailure.
const (
	Local OnStoreFailure = iota // count this process's share of the limit in memory; default
	Allow                       // fail open
	Deny                        // fail closed
	Fail                        // return an error, so that the caller decides
)

var onStoreFailureNames = [...]string{Local: "local", Allow: "allow", Deny: "deny", Fail: "error"}

// ParseOnStoreFailure parses the name of a value in a rule file. The error lists the names.
func ParseOnStoreFailure(name string) (OnStoreFailure, error) {
	if i := slices.Index(onStoreFailureNames[:], name); i >= 0 {
		return OnStoreFailure(i), nil //nolint:gosec // there are four
	}
	return Local, fmt.Errorf("%q is not known: use local, allow, deny or error", name)
}

// Process has the settings of rules that depend on the process.
type Process struct {
	// OnStoreFailure applies to limits that set none.
	OnStoreFailure OnStoreFailure
	// Replicas is the number of processes that share the limits, for Limit.Local. 0 means 1.
	Replicas int
	// ShadowMode and QuotaMode put every rule into that mode.
	ShadowMode, QuotaMode bool
	// PeekAtLimit is limiter.Params.PeekAtLimit of every limit.
	PeekAtLimit bool
	// Lenient turns errors about rules that envoyproxy/ratelimit tolerates into warnings: see Builder.Tolerate.
	// LenientFiles, if not empty, does this for files whose names begin with it.
	Lenient      bool
	LenientFiles string
	// Stores has the names that a limit's store may have; nil means any name.
	Stores []string
	// PerSecondStore is the Placement.Store of limits per one second that name no store.
	PerSecondStore string
	// Region is this process's region. Regions has the percentage of each region for limits with Placement.Regions. If it
	// is empty, these limits are errors; if it is nil, they are valid and whole.
	Region  string
	Regions map[string]int64
	// Rest, if not nil, is called for each rule, so that a process that serves requests can pause a load. If it returns an
	// error, the load ends with this error.
	Rest func() error
}

// store returns the Placement.Store of a limit that names a store and counts per multiplier units.
func (p *Process) store(name string, unit Unit, multiplier int64) string {
	isPerSecond := unit == Second && multiplier <= 1
	switch {
	case name == "" && isPerSecond:
		return p.PerSecondStore
	case name == p.PerSecondStore && !isPerSecond:
		return ""
	default:
		return name
	}
}

// checkStore returns an error if the name of a limit's store is unknown. "" is the first store.
func (p *Process) checkStore(name string) error {
	switch {
	case name == "" || p.Stores == nil || slices.Contains(p.Stores, name):
		return nil
	case len(p.Stores) == 0:
		return fmt.Errorf("store: there is no store %q: this process has only --store; add --named-store, or "+
			"remove store", name)
	default:
		return fmt.Errorf("store: there is no store %q: --named-store has %s", name, strings.Join(p.Stores, ", "))
	}
}

// mode returns the mode of a rule with these flags. Shadow mode precedes quota mode, as in envoyproxy/ratelimit.
func (p *Process) mode(shadow, quota bool) limiter.Mode {
	switch {
	case shadow || p.ShadowMode:
		return limiter.Shadow
	case quota || p.QuotaMode:
		return limiter.Quota
	default:
		return limiter.Enforce
	}
}

// Domain returns the domain of that name, or nil.
func (s *Set) Domain(name string) *Domain { return s.domains[name] }

// Domains returns all domains, sorted by name. A domain's ID is its index.
func (s *Set) Domains() []*Domain { return s.sorted }

// Limits returns all limits in file order. A limit's ID is its index.
func (s *Set) Limits() []*Limit { return s.limits }

// Warnings returns the warnings, sorted like errors.
func (s *Set) Warnings() Errors { return s.warnings }

// Name returns the domain's name in requests.
func (d *Domain) Name() string { return d.name }

// QuotaMode reports whether the process puts all descriptors into quota mode, even those that match no rule.
func (d *Domain) QuotaMode() bool { return d.own.process.QuotaMode }

// ID returns the domain's index in Set.Domains.
func (d *Domain) ID() int { return d.id }

// String returns the value's name in a rule file.
func (o OnStoreFailure) String() string { return onStoreFailureNames[o] }

// Rule returns the rule with that Path, or nil. The first call takes time in proportion to the number of rules.
func (d *Domain) Rule(path string) *Rule {
	d.findPaths.Do(func() {
		d.paths = make(map[string]*Rule, len(d.rules))
		for _, r := range slices.Backward(d.rules) {
			d.paths[r.Path] = r
		}
	})
	return d.paths[path]
}

// Rules returns the domain's rules in file order.
func (d *Domain) Rules() []*Rule { return d.rules }

// Params returns the parameters of the limit's policy.
func (l *Limit) Params() limiter.Params { return *l.params }

// Title returns the limit's name and its rule's position, for messages.
func (l *Limit) Title() string {
	return Located(strings.TrimSuffix(l.Rule.Path+": "+l.Name, ": "), l.Rule.Source)
}

// Located returns a rule's path and position. The rule that denies too long values has no position.
func Located(path, source string) string {
	if source == "" {
		return path
	}
	return path + " (" + source + ")"
}
