package descriptors

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gaissmai/bart"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Compile parses and checks the files and compiles them into one Set. Its error is Errors: everything that is
// wrong with any of the files.
func Compile(files []File) (*Set, error) { return CompileFor(Process{}, files) }

// CompileFor is Compile for a process that fills in what the files leave to it.
func CompileFor(process Process, files []File) (*Set, error) {
	c, ok := read(&process, files, readAtOnce)
	if !ok {
		c, _ = read(&process, files, readFile)
	}
	for _, b := range c.branches {
		c.finishBranch(b)
	}
	for _, name := range slices.Sorted(maps.Keys(c.domains)) {
		c.checkReplaces(c.domains[name])
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	return c.set(), nil
}

// read makes a compiler that has read all files. False: one of them cannot be read like that.
func read(process *Process, files []File, by fileReader) (c *compiler, ok bool) {
	c = &compiler{process: process, domains: map[string]*domain{}, included: map[string][]byte{}}
	for _, f := range files {
		if f.Included {
			c.included[f.Name] = f.Data
		}
	}
	for _, f := range files {
		if !f.Included && !by(f, &c.problems, process, c.document) {
			return nil, false
		}
	}
	return c, true
}

// compiler builds a Set, and goes on after problems.
type compiler struct {
	problems
	process  *Process
	domains  map[string]*domain
	limits   []*Limit
	included map[string][]byte // files of values
	memory   memory
	branches []*Branch // that have patterns
	automata int       // bytes
}

// domain is a Domain that is being built.
type domain struct {
	*Domain
	named    map[string]bool // the names of its limits
	replaces []replacement   // in file order
	starts   map[counter]string
}

// keyStart is counter.keyStart, once for equal ones.
func (d *domain) keyStart(which counter) string {
	start, ok := d.starts[which]
	if !ok {
		start = which.keyStart(d.name)
		d.starts[which] = start
	}
	return start
}

// replacement says that one limit, named or not, replaces others by name.
type replacement struct {
	by string
	of place
}

// parent is where descriptors are added to.
type parent struct {
	*Node
	domain *domain
	path   string
	depth  int // entries that lead here
	levels []level
}

// document is a receiver.
func (c *compiler) document(name string) (take func(*descriptor)) {
	d := c.domains[name]
	if d == nil {
		d = &domain{Domain: &Domain{name: name}, named: map[string]bool{}, starts: map[counter]string{}}
		d.own = &Rule{Domain: name, Path: "(limit of the request)", process: c.process}
		var err error
		if d.long, err = newLongRule(name, c.process); err != nil {
			c.add(position{file: name}, "%s", err)
		}
		c.domains[name] = d
	}
	to := parent{Node: &d.root, domain: d}
	return func(d *descriptor) { c.descriptor(to, d) }
}

// descriptor adds the descriptor's rule and those below it, and returns where among them a limit denies.
func (c *compiler) descriptor(to parent, d *descriptor) (enforced levels) {
	c.process.rest()
	if d.key == "" {
		return 0 // said by the reader
	}
	if strings.Contains(d.key, "*") {
		c.add(d.at, "key %s contains *, which stands for any characters only in value; write the whole key", d.key)
	}
	if d.share && !strings.Contains(d.value, "*") && d.match.form == noForm {
		c.add(d.shareAt, "share_threshold goes with a value that contains *, or with values, values_file, cidr or regex, whose "+
			"requests then share one counter; remove it, or write one of these")
	}
	n := c.memory.nodes.next()
	n.rule = c.rule(to, d)
	p := c.place(to, d, n)
	if len(n.rule.Limits) > 0 && n.rule.Mode != limiter.Shadow {
		enforced = 1
	}
	for _, child := range d.children {
		enforced |= c.descriptor(parent{n, to.domain, n.rule.Path, n.rule.depth, n.rule.levels}, child).below()
	}
	if p != nil {
		p.enforced = enforced
	}
	return enforced
}

// place puts the node where the descriptor's key and value say. It returns the pattern or regex that leads there, if one does.
func (c *compiler) place(to parent, d *descriptor, n *Node) (p *Pattern) {
	if to.keys == nil {
		to.keys = map[string]*Branch{}
	}
	b := to.keys[d.key]
	if b == nil {
		b = c.memory.branches.next()
		b.matchers = &noMatchers
		to.keys[d.key] = b
	}
	switch {
	case d.match.form != noForm:
		p = c.placeForm(b, d, n)
	case d.value == "":
		if b.any != nil {
			c.twice(d.at, b.any)
			return nil
		}
		b.any = n
	case strings.Contains(d.value, "*"):
		p = c.placePattern(b, d, n)
	default:
		if first := b.addExact(d.value, n); first != nil {
			c.twice(d.at, first)
		}
	}
	c.warnUnreachable(b, d)
	return p
}

// addExact adds the value, unless it is there already: then it returns where that leads.
func (b *Branch) addExact(value string, n *Node) (first *Node) {
	if first := b.exact[value]; first != nil {
		return first
	}
	if b.exact == nil {
		b.exact = map[string]*Node{}
	}
	b.exact[value] = n
	return nil
}

// open makes room for matchers.
func (c *compiler) open(b *Branch) {
	if b.matchers == &noMatchers {
		b.matchers = &matchers{by: map[string]*Node{}}
		c.branches = append(c.branches, b)
	}
}

// addPattern puts a pattern or regex, which is written at value, behind the branch's others.
func (c *compiler) addPattern(b *Branch, p *Pattern, descriptor, value position) {
	c.open(b)
	p.order = b.next()
	b.all, b.places = append(b.all, p), append(b.places, written{descriptor, value})
}

// placeForm puts the node where the descriptor's values, blocks or regex say. It returns the regex that leads there, if one does.
func (c *compiler) placeForm(b *Branch, d *descriptor, n *Node) (p *Pattern) {
	if len(d.match.items) == 0 {
		return nil // said by the reader
	}
	shared := d.match.shared()
	if first := b.by[shared]; first != nil {
		c.twice(d.at, first)
		return nil
	}
	c.open(b)
	b.by[shared] = n
	if all := b.every; all != nil {
		if d.match.form == formCIDR || d.match.form == formRegex {
			c.add(d.match.at, "%s is never reached: %s at %s matches every value; move it up, before that one",
				d.match.form, all.text, all.to.rule.Source)
			return nil
		}
	}
	switch d.match.form {
	case formValues:
		c.placeValues(b, d.match.items, n)
	case formFile:
		c.placeValues(b, c.listed(&d.match), n)
	case formCIDR:
		c.placeBlocks(b, d, n)
	case formRegex:
		p = c.placeRegex(b, d, n)
	case noForm:
	}
	return p
}

func (c *compiler) placeValues(b *Branch, values []place, n *Node) {
	for _, v := range values {
		c.process.rest()
		if strings.Contains(v.name, "*") {
			c.add(v.at, "%s contains *, which stands for any characters only in value; write a descriptor with value: for it", shown(v.name))
			continue
		}
		if first := b.addExact(v.name, n); first != nil {
			c.add(v.at, "%s is already matched by %s at %s; remove one of the two", shown(v.name), first.rule.Path, first.rule.Source)
		}
	}
}

// placeBlocks adds the blocks as one pattern.
func (c *compiler) placeBlocks(b *Branch, d *descriptor, n *Node) {
	p := &Pattern{to: n, order: b.next()}
	for _, item := range d.match.items {
		c.process.rest()
		prefix, ok := c.prefix(item)
		if !ok {
			continue
		}
		if b.blocks.table == nil {
			b.blocks.table = &bart.Table[*Pattern]{}
		}
		if first, ok := b.blocks.table.Get(prefix); ok {
			c.add(item.at, "%s is already matched by %s at %s; remove one of the two", prefix, first.to.rule.Path, first.to.rule.Source)
			continue
		}
		b.blocks.table.Insert(prefix, p)
	}
}

func (c *compiler) placeRegex(b *Branch, d *descriptor, n *Node) *Pattern {
	text := d.match.items[0]
	p, err := newRegex(text.name, n, c.process.rest)
	if err != nil {
		c.add(text.at, "%s", err)
		return nil
	}
	if c.automata += p.re.bytes(); c.automata > maxAutomata {
		c.automata = math.MinInt // say it once
		c.add(text.at, "the regexes up to here need more than %d MiB as automata; repeat less in them, or write fewer", maxAutomata>>20)
		return nil
	}
	c.addPattern(b, p, d.at, text.at)
	return p
}

// next is the order of the branch's next pattern.
func (b *Branch) next() int {
	b.order++
	return b.order
}

func (c *compiler) twice(at position, first *Node) {
	c.add(at, "%s is already at %s; put what belongs to it in one place", first.rule.Path, first.rule.Source)
}

// placePattern puts the node behind the branch's other patterns. finishBranch looks whether one of them leaves nothing to it.
func (c *compiler) placePattern(b *Branch, d *descriptor, n *Node) *Pattern {
	p := c.memory.patterns.next()
	*p = newPattern(d.value, n)
	c.addPattern(b, p, d.at, d.valueAt)
	if b.every == nil && strings.Trim(p.text, "*") == "" {
		b.every = p
	}
	return p
}

func (c *compiler) rule(to parent, d *descriptor) *Rule {
	r := c.memory.rules.next()
	*r = Rule{
		Domain:         to.domain.name,
		Path:           c.path(to.path, d),
		Source:         c.memory.texts.place(d.at.file, d.at.line),
		Metadata:       d.metadata,
		DetailedMetric: d.detailedMetric,
		ValueToMetric:  d.valueToMetric,
		Response:       d.response,
		Description:    d.description,
		Owner:          d.owner,
		Extra:          d.extra,
		depth:          to.depth + 1,
		levels:         to.levelsTo(d),
		process:        c.process,
	}
	switch {
	case d.shadow: // as in envoyproxy/ratelimit, where a shadow rule's answer is OK before quotas are counted
		r.Mode = limiter.Shadow
	case d.quota:
		r.Mode = limiter.Quota
	}
	c.addLimits(to.domain, r, d)
	to.domain.rules = append(to.domain.rules, r)
	return r
}

// levelsTo are the levels of the descriptor's rule: no more than the last that is not shown as it came.
func (to *parent) levelsTo(d *descriptor) []level {
	last := newLevel(d)
	if last == (level{}) {
		return to.levels
	}
	levels := make([]level, to.depth+1)
	copy(levels, to.levels)
	levels[to.depth] = last
	return levels
}

func (c *compiler) path(parent string, d *descriptor) string {
	if parent == "" && d.value == "" && d.match.form == noForm {
		return pathKey(d.key)
	}
	above, is := " > ", "="
	if parent == "" {
		above = ""
	}
	if d.value == "" {
		is = ""
	}
	of := ""
	if d.match.form != noForm {
		of = d.match.text()
	}
	return c.memory.texts.join(parent, above, pathKey(d.key), is, pathValue(d.value), pathValue(of))
}

// addLimits gives the rule its limits, and remembers their names and what they replace.
func (c *compiler) addLimits(to *domain, r *Rule, d *descriptor) {
	all := d.limits
	if d.limit != nil {
		all = []*rateLimit{d.limit}
	}
	for i, l := range all {
		if l.name != "" {
			to.named[l.name] = true
		}
		for _, p := range l.replaces {
			to.replaces = append(to.replaces, replacement{l.name, p})
		}
		which := counter{algorithm: l.params.Algorithm, refill: l.params.Refill, engine: l.params.Engine}
		if d.limits != nil {
			if which.name = l.name; l.name == "" {
				which.tellApart(all, i)
			}
		}
		switch {
		case l.unlimited:
			r.Unlimited, r.Replaces = true, replaced(l)
		case l.shared != nil:
			if r.Limits == nil {
				r.Limits = c.memory.limitLists.take(len(all))[:0]
			}
			r.Limits = append(r.Limits, c.newLimit(to, r, l, which))
		}
	}
}

func replaced(l *rateLimit) []string {
	var all []string
	for _, p := range l.replaces {
		all = append(all, p.name)
	}
	return all
}

func (c *compiler) newLimit(to *domain, r *Rule, from *rateLimit, which counter) *Limit {
	l := c.memory.limits.next()
	*l = Limit{
		ID:             len(c.limits),
		Name:           from.name,
		Policy:         from.shared.Policy,
		Unit:           from.unit,
		UnitMultiplier: uint32(from.multiplier), //nolint:gosec // the reader keeps it within 32 bits
		Replaces:       replaced(from),
		OnStoreFailure: from.onStoreFailure,
		Rule:           r,
		params:         &from.shared.params,
	}
	if !from.has("on_store_failure") {
		l.OnStoreFailure = c.process.OnStoreFailure
	}
	if err := l.share(); err != nil {
		c.add(from.at, "%s", err)
	}
	l.keyStart = to.keyStart(which)
	c.limits = append(c.limits, l)
	return l
}

// share sets the process's share of the limit, if it is for Local to count. A limit that has a policy has a share.
func (l *Limit) share() (err error) {
	l.Local = nil
	if l.OnStoreFailure == Local {
		l.Local, err = l.params.Share(int64(l.Rule.process.Replicas))
	}
	return err
}

func (c *compiler) set() *Set {
	s := &Set{domains: make(map[string]*Domain, len(c.domains)), limits: c.limits, warnings: c.warnings.sorted(), stores: c.stores, process: c.process}
	for name, d := range c.domains {
		s.domains[name] = d.Domain
		s.sorted = append(s.sorted, d.Domain)
	}
	slices.SortFunc(s.sorted, func(a, b *Domain) int { return cmp.Compare(a.name, b.name) })
	for i, d := range s.sorted {
		d.id = i
	}
	return s
}
