// Package descriptors is the rule language of Weir: it checks rules, compiles them into an immutable [Set], and
// matches a request's descriptors against it without allocating. pkg/descriptors is what Go programs see of it.
//
// A Set is made of domains, a [Domain] is a tree of rules, and a [Rule] has limits. A [Builder] makes a Set of
// descriptors; package rulefile reads these from YAML files, and internal/rules/xds from a control plane.
//
// A request has a domain and descriptors, each a list of entries. [Domain.Match] finds the rule that a descriptor
// reaches. Each [Limit] of it has a Policy, and [Limit.AppendKey] names its counter: both make a [limiter.Hit].
// internal/decide makes these, with shadow and quota mode, replaces and failure policies.
//
// For people, [Domain].Root, [Node] and [Branch] are the tree, [Set.Warnings] lists what is
// not wrong but may not do what was meant, and [ParseEntries] and [ParseKey] read what people write and a store lists.
//
// This package knows no YAML, no protobuf, no store, and not where files lie.
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

// Set is the compiled rules of all files. It is immutable and safe for concurrent use.
type Set struct {
	domains map[string]*Domain
	sorted  []*Domain
	limits  []*Limit

	warnings Errors
	process  *Process
}

// Domain is the tree of rules that one Envoy filter domain asks. It is immutable and safe for concurrent use.
type Domain struct {
	name  string
	id    int     // in Set.Domains
	Root  Node    // of its tree, where a request's first entry is matched
	rules []*Rule // in file order
	own   *Rule   // of the limits that requests bring along where no rule matches
	long  *Rule   // of values that are too long to decide which pattern they match

	findPaths sync.Once
	paths     map[string]*Rule
}

// Rule is one node of a domain's tree: what a descriptor that ends there means.
type Rule struct {
	Domain string `json:"-"`
	// Path is for people: "remote_address", or "api_key > path=/checkout*".
	Path string `json:"path"`
	// Source is where the rule is written, as "file:line".
	Source string `json:"source"`
	// Mode is Shadow with shadow_mode, else Quota with quota_mode, else Enforce.
	Mode limiter.Mode `json:"-"`
	// Unlimited is set by `unlimited: true`.
	Unlimited bool `json:"unlimited,omitempty"`
	// Replaces names the limits that an unlimited rule drops within one request. Nil for other rules: each
	// limit has its own.
	Replaces []string `json:"replaces,omitempty"`
	// Limits must all pass. A rule without limits is known and has no limit.
	Limits []*Limit `json:"limits,omitempty"`
	// The flags of that name.
	ShadowMode     bool `json:"-"`
	QuotaMode      bool `json:"-"`
	ShareThreshold bool `json:"share_threshold,omitempty"`
	HashValues     bool `json:"hash_values,omitempty"`
	// Metadata is the rule's `metadata`: values as encoding/json decodes them. Nil if there is none.
	Metadata map[string]any `json:"metadata,omitempty"`
	// Response is what Envoy adds to the response to a request that the rule denies. Nil adds nothing.
	Response *Response `json:"response,omitempty"`
	// Description and Owner are for people.
	Description string `json:"description,omitempty"`
	Owner       string `json:"owner,omitempty"`
	// Extra are the descriptor's x-* fields, which mean nothing here: values as encoding/json decodes them.
	Extra map[string]any `json:"extra,omitempty"`

	depth   int     // entries that lead to it
	levels  []level // of those entries; the zero level from where it ends
	tooLong bool    // see IsTooLong
	process *Process
}

// Limit is one limit of a rule.
type Limit struct {
	// ID is the limit's index in Set.Limits. A limit made by Domain.Override where no limit was matched has -1.
	ID int
	// Name is the limit's `name`, which `replaces` refers to. It may be empty.
	Name string
	// Policy is how the limit counts.
	Policy *limiter.Policy
	// Unit and UnitMultiplier are the window as Envoy gets it: Window = Unit x UnitMultiplier. UnitUnknown
	// if the window is no whole multiple of a unit.
	Unit           Unit
	UnitMultiplier uint32
	// Replaces names the limits that this one drops within one request.
	Replaces []string
	// OnStoreFailure decides about requests while the store cannot answer.
	OnStoreFailure OnStoreFailure
	// Local is the process's share of the limit, which it counts while the store does not decide. Nil: it does not count.
	Local *limiter.Policy
	// Rule is where the limit is written.
	Rule *Rule

	params    *limiter.Params // not to be changed: other limits have the same
	placement *Placement      // nor this; nil for the zero one
	keyStart  string
}

// OnStoreFailure is the answer while the store fails.
type OnStoreFailure uint8

// The values of OnStoreFailure.
const (
	Local OnStoreFailure = iota // count this process's share of the limit in its memory: the default
	Allow                       // let requests pass
	Deny                        // let none pass
	Fail                        // answer with an error, so that the caller decides
)

var onStoreFailureNames = [...]string{Local: "local", Allow: "allow", Deny: "deny", Fail: "error"}

// ParseOnStoreFailure reads the value's name in a rule file. The error says which there are.
func ParseOnStoreFailure(name string) (OnStoreFailure, error) {
	if i := slices.Index(onStoreFailureNames[:], name); i >= 0 {
		return OnStoreFailure(i), nil //nolint:gosec // there are four
	}
	return Local, fmt.Errorf("%q is not known: use local, allow, deny or error", name)
}

// Process is what a rule file leaves to the process that reads it.
type Process struct {
	// OnStoreFailure is that of limits that do not say.
	OnStoreFailure OnStoreFailure
	// Replicas is how many processes share the limits, for Limit.Local. 0 is 1: each process counts the whole limit.
	Replicas int
	// ShadowMode and QuotaMode put every rule into that mode.
	ShadowMode, QuotaMode bool
	// LookAtLimit is limiter.Params.LookAtLimit of every limit.
	LookAtLimit bool
	// Lenient makes findings of what envoyproxy/ratelimit tolerates, where Weir's own way are errors: see
	// Builder.Tolerate. Where LenientFiles is not empty, it does so for files whose names begin with that.
	Lenient      bool
	LenientFiles string
	// Stores are the names that limits may have as their store; nil is any.
	Stores []string
	// PerSecondStore is the Placement.Store of limits per one second that name none.
	PerSecondStore string
	// Rest, if not nil, is called for each rule, so that a process that serves requests can pause a load. An error from it
	// ends the load with that error.
	Rest func() error
}

// store is the Placement.Store of a limit that counts per this unit.
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

// checkStore returns what is wrong with the name of a limit's store; "" is the first store.
func (p *Process) checkStore(name string) error {
	switch {
	case name == "" || p.Stores == nil || slices.Contains(p.Stores, name):
		return nil
	case len(p.Stores) == 0:
		return fmt.Errorf("store: there is no store %q: this process has none beside --store; add --named-store, or "+
			"remove store", name)
	default:
		return fmt.Errorf("store: there is no store %q: --named-store has %s", name, strings.Join(p.Stores, ", "))
	}
}

// mode is that of a rule with these flags. A shadow rule's answer is OK before quotas are counted, as in
// envoyproxy/ratelimit.
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

// Domain returns the domain of that name, nil if there is none.
func (s *Set) Domain(name string) *Domain { return s.domains[name] }

// Domains returns all domains, sorted by name. A domain's ID is its index here.
func (s *Set) Domains() []*Domain { return s.sorted }

// Limits returns every limit in file order. A limit's ID is its index here.
func (s *Set) Limits() []*Limit { return s.limits }

// Warnings are what is not wrong, but may not do what was meant, sorted as errors are.
func (s *Set) Warnings() Errors { return s.warnings }

// Name is the domain as a request names it.
func (d *Domain) Name() string { return d.name }

// QuotaMode is that of the process: every descriptor of a request is in quota mode, also one that no rule matches.
func (d *Domain) QuotaMode() bool { return d.own.process.QuotaMode }

// ID is the domain's index in Set.Domains of its set.
func (d *Domain) ID() int { return d.id }

// String is the value's name in a rule file.
func (o OnStoreFailure) String() string { return onStoreFailureNames[o] }

// Rule is the domain's rule of that Path, nil if there is none. The first call takes as long as there are rules.
func (d *Domain) Rule(path string) *Rule {
	d.findPaths.Do(func() {
		d.paths = make(map[string]*Rule, len(d.rules))
		for _, r := range slices.Backward(d.rules) {
			d.paths[r.Path] = r
		}
	})
	return d.paths[path]
}

// Rules are the domain's, in file order.
func (d *Domain) Rules() []*Rule { return d.rules }

// Params are the parameters that the limit's policy was made of.
func (l *Limit) Params() limiter.Params { return *l.params }
