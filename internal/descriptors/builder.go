package descriptors

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Builder makes a Set of descriptors. It goes on after problems, so that Build can report all of them. It is not safe
// for concurrent use.
type Builder struct {
	process    *Process
	found      findings // what is wrong
	warnings   findings // what is not wrong, but may not do what was meant
	incomplete bool
	ended      error // of Process.Rest

	domains  map[string]*domain
	limits   []*Limit
	policies map[form]*sharedPolicy
	branches []*Branch // that have patterns
	regexes  int       // steps that it took to compile them
	pathText int       // bytes of the paths of rules
	checked  []checked // of one rule, for use by the next
	here     Position  // of the descriptor that is added
}

// form is what limits with one policy and one route have in common.
type form struct {
	params    limiter.Params
	placement Placement
}

// sharedPolicy is a policy and what it was made of. Limits of the same form share it.
type sharedPolicy struct {
	*limiter.Policy
	form

	route *Placement // nil for the zero one
}

// NewBuilder returns a Builder for a process that fills in what descriptors leave to it.
func NewBuilder(process Process) *Builder {
	return &Builder{process: &process, domains: map[string]*domain{}, policies: map[form]*sharedPolicy{}}
}

// Add adds rules to a domain. Within a domain, patterns added earlier are tried first.
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

// Build returns the Set of what was added. Its error is that of Process.Rest, or Errors: everything that is wrong.
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

// enter notes where the descriptor is. One that a Go program made is at its path.
func (c *Builder) enter(d *Descriptor, domain, parent string) {
	if c.here = d.At; c.here == (Position{}) {
		c.here.File = domain + ": " + c.path(parent, d)
	}
}

// at is the position, or that of the descriptor that is added, if a Go program has left it out.
func (c *Builder) at(given Position) Position {
	if given == (Position{}) {
		return c.here
	}
	return given
}

// Errorf reports a problem, which makes Build fail. It is for readers of rules.
func (c *Builder) Errorf(at Position, format string, args ...any) {
	c.found.add("", c.at(at), format, args...)
}

// Tolerate reports what envoyproxy/ratelimit tolerates: a problem, or, for a Process that is Lenient, a warning that
// says what holds until it is mended. It is for readers of rules.
func (c *Builder) Tolerate(at Position, holds, format string, args ...any) {
	if !c.lenient(at) {
		c.Errorf(at, format, args...)
		return
	}
	c.Warnf(WarnTolerated, at, format+"; until then "+holds, args...)
}

// Rest calls Process.Rest, unless that is nil, until its first error, which it returns from then on.
func (c *Builder) Rest() error {
	if c.process.Rest != nil && c.ended == nil {
		c.ended = c.process.Rest()
	}
	return c.ended
}

// Lenient is Process.Lenient.
func (c *Builder) Lenient() bool { return c.process.Lenient }

func (c *Builder) lenient(at Position) bool {
	prefix := c.process.LenientFiles
	return c.process.Lenient || prefix != "" && strings.HasPrefix(c.at(at).File, prefix)
}

// Warnf reports what is not wrong, but may not do what was meant. The code is one of the Warn words.
func (c *Builder) Warnf(code string, at Position, format string, args ...any) {
	c.warnings.add(code, c.at(at), format, args...)
}

// Problems is the number of problems so far.
func (c *Builder) Problems() int { return c.found.total }

// OnlyCounts reports whether there are so many problems that Errorf only counts further ones.
func (c *Builder) OnlyCounts() bool { return c.found.full() }

// SkipsRules tells the Builder that rules could not be read, so that it reports no names that only these may have.
func (c *Builder) SkipsRules() { c.incomplete = true }

// domain is a Domain that is being built.
type domain struct {
	*Domain

	named    map[string]bool // the names of its limits
	replaces []replacement   // in file order
}

// replacement says that one limit, named or not, replaces others by name.
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
