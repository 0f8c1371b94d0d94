package descriptors

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Builder builds a Set from descriptors, and collects all errors for Build. It is not safe for concurrent use.
type Builder struct {
	process    *Process
	found      findings // errors
	warnings   findings // warnings
	incomplete bool
	ended      error // error of Process.Rest

	domains  map[string]*domain
	limits   []*Limit
	policies map[form]*sharedPolicy
	branches []*Branch // branches with patterns
	regexes  int       // work of compiling all regexes, in steps
	pathText int       // total length of rule paths in bytes
	checked  []checked // limits of one rule; reused for the next
	defaults []*Default
	reserved *Reservation // first reservation of the rule whose limits are checked, or nil
	here     Position     // position of the descriptor that is being added
	inDomain string       // domain of that descriptor
	inQuota  bool         // whether its rule is in quota mode
}

// form identifies limits with the same policy and route.
type form struct {
	params    limiter.Params
	placement Placement
}

// sharedPolicy is a policy that all limits of its form share.
type sharedPolicy struct {
	*limiter.Policy
	form

	route *Placement // nil for the zero Placement
}

// NewBuilder returns a Builder of rules for a process.
func NewBuilder(process Process) *Builder {
	return &Builder{process: &process, domains: map[string]*domain{}, policies: map[form]*sharedPolicy{}}
}

// Add adds rules to a domain. Patterns match in the order in which they were added.
func (c *Builder) Add(domain string, descriptors ...*Descriptor) {
	d := c.domain(domain)
	for _, descriptor := range descriptors {
		if domain == "" && !descriptor.Invalid {
			c.enter(descriptor, d.name, "")
			c.Errorf(descriptor.At, "the domain is empty; name the domain that Envoy's rate limit filter sends")
		}
		c.descriptor(parent{Node: &d.Root, domain: d}, descriptor)
	}
}

// Build returns the Set of all added rules, or Errors with all errors. It may also return an error of Process.Rest.
func (c *Builder) Build() (*Set, error) {
	if c.ended != nil {
		return nil, c.ended
	}
	for _, branch := range c.branches {
		if c.Rest() != nil {
			return nil, c.ended
		}
		c.finishBranch(branch)
	}
	c.branches = nil
	for _, name := range slices.Sorted(maps.Keys(c.domains)) {
		c.checkReplaces(c.domains[name])
	}
	if c.found.total > 0 {
		return nil, c.found.sorted()
	}
	s := &Set{
		domains: make(map[string]*Domain, len(c.domains)), limits: c.limits, warnings: c.warnings.sorted(),
		process: c.process,
	}
	for name, d := range c.domains {
		s.domains[name] = d.Domain
		s.sorted = append(s.sorted, d.Domain)
	}
	slices.SortFunc(s.sorted, func(a, b *Domain) int { return cmp.Compare(a.name, b.name) })
	for i, d := range s.sorted {
		d.id = i
	}
	return s, nil
}

// enter sets c.here to the descriptor's position, or to its path if a Go program made the descriptor, and what defaults
// depend on.
func (c *Builder) enter(d *Descriptor, domain, parent string) {
	c.inDomain, c.inQuota = domain, c.process.mode(d.ShadowMode, d.QuotaMode) == limiter.Quota
	if c.here = d.At; c.here == (Position{}) {
		c.here.File = domain + ": " + c.path(parent, d)
	}
}

// at returns the given position or, if a Go program left it out, the position of the descriptor that is being added.
func (c *Builder) at(given Position) Position {
	if given == (Position{}) {
		return c.here
	}
	return given
}

// Errorf reports an error, which makes Build fail. It is for readers of rules.
func (c *Builder) Errorf(at Position, format string, args ...any) {
	c.found.add("", c.at(at), format, args...)
}

// Tolerate reports a rule that envoyproxy/ratelimit tolerates: as an error or, if the process is lenient, as a warning.
// holds says what the rule does before it is corrected. Tolerate is for readers of rules.
func (c *Builder) Tolerate(at Position, holds, format string, args ...any) {
	if !c.lenient(at) {
		c.Errorf(at, format, args...)
		return
	}
	c.Warnf(WarnTolerated, at, format+"; until then "+holds, args...)
}

// Rest calls Process.Rest if set. After its first error, Rest returns this error without further calls.
func (c *Builder) Rest() error {
	if c.process.Rest != nil && c.ended == nil {
		c.ended = c.process.Rest()
	}
	return c.ended
}

// Lenient returns Process.Lenient.
func (c *Builder) Lenient() bool { return c.process.Lenient }

func (c *Builder) lenient(at Position) bool {
	prefix := c.process.LenientFiles
	return c.process.Lenient || prefix != "" && strings.HasPrefix(c.at(at).File, prefix)
}

// Warnf reports a warning. code is one of the Warn constants.
func (c *Builder) Warnf(code string, at Position, format string, args ...any) {
	c.warnings.add(code, c.at(at), format, args...)
}

// Problems returns the number of errors so far.
func (c *Builder) Problems() int { return c.found.total }

// OnlyCounts reports whether there are so many errors that Errorf only counts further errors.
func (c *Builder) OnlyCounts() bool { return c.found.full() }

// SkipsRules records that some rules could not be read. Build then does not report unknown names of limits.
func (c *Builder) SkipsRules() { c.incomplete = true }

// domain is a Domain under construction.
type domain struct {
	*Domain

	named    map[string]bool // names of its limits
	replaces []replacement   // in file order
}

// replacement is a limit's reference to a limit that it replaces.
type replacement struct {
	by string
	of Text
}

func (c *Builder) domain(name string) *domain {
	d := c.domains[name]
	if d == nil {
		d = &domain{Domain: &Domain{name: cmp.Or(name, "no domain")}, named: map[string]bool{}}
		d.own = &Rule{Domain: name, Path: "(limit of the request)", process: c.process, Mode: c.process.mode(false, false)}
		var err error
		if d.long, err = newLongRule(name, c.process); err != nil {
			c.Errorf(Position{File: name}, "%s", err)
		}
		c.domains[name] = d
	}
	return d
}
