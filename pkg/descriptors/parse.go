package descriptors

import (
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// document is one YAML document: rules of one domain.
type document struct {
	domain      string
	listAt      position // of descriptors, of line 0 where they are not given
	descriptors []*descriptor
}

// descriptor is one item of `descriptors`.
type descriptor struct {
	at, valueAt, shareAt position

	key, value                    string
	match                         matcher
	response                      *Response
	description, owner            string
	extra                         map[string]any // x-*
	shadow, quota, share, hash    bool
	detailedMetric, valueToMetric bool
	metadata                      map[string]any
	limit                         *rateLimit   // rate_limit
	limits                        []*rateLimit // rate_limits
	children                      []*descriptor
}

// rateLimit is `rate_limit`, or one item of `rate_limits`.
type rateLimit struct {
	at              position
	given           []place  // the fields that are written
	meant           []string // the fields that misspelled ones seem to stand for: nobody needs to hear that they are missing
	waitsForNothing bool     // max_wait: 0s
	bad             bool     // one of them is wrong, and that is said

	name           string
	replaces       []place
	unlimited      bool
	unit           Unit
	multiplier     int64
	window         time.Duration
	lease          time.Duration
	leased         bool           // consistency
	params         limiter.Params // as written; complete after finish
	onStoreFailure OnStoreFailure
	shared         *sharedPolicy // nil if unlimited, or if something is wrong
}

// sharedPolicy is a policy and what it was made of.
type sharedPolicy struct {
	*limiter.Policy

	params limiter.Params
}

// place is a name and where it is written.
type place struct {
	name string
	at   position
}

// receiver takes what a fileReader reads: a document, and then each of its descriptors, which it must not keep.
type receiver func(domain string) (take func(d *descriptor))

// fileReader reads the documents of a file. Every problem that can be told from the file alone is then told. False: this way
// of reading is not for that file, and what was told and given until then counts for nothing.
type fileReader func(f File, p *problems, process *Process, to receiver) (ok bool)

// readAtOnce reads files that plain can parse and in which each document begins with its domain, as nearly all do. It takes
// a sixth less time than readFile, which has to look through such a file first.
func readAtOnce(f File, p *problems, process *Process, to receiver) (ok bool) {
	r := newReader(f, p, process)
	var take func(*descriptor) // nil until the document's first descriptor
	var domain string          // which take was given for
	var s *plain
	s = r.stream(restingText(f.Data, process), func(d *descriptor) {
		if take == nil {
			domain = s.domain
			take = to(domain)
		}
		take(d)
	})
	for documents := 0; ; documents++ {
		take = nil
		root, ok := s.document()
		if !ok || root == nil {
			return ok && documents > 0
		}
		d, ok := r.readDocument(root)
		switch {
		case !ok || take != nil && d.domain != domain:
			return false
		case take == nil:
			take = to(d.domain)
		}
		d.give(take)
	}
}

// readFile reads any file.
func readFile(f File, p *problems, process *Process, to receiver) (ok bool) {
	r := newReader(f, p, process)
	text := restingText(f.Data, process)
	if domains := plainDomains(text, process); domains != nil {
		r.readPlain(text, domains, to)
		return true
	}
	before := p.errors()
	roots := slices.DeleteFunc(r.parse(f), isNull)
	if len(roots) == 0 && p.errors() == before {
		// As in envoyproxy/ratelimit, and not only for its sake: a full disk, or a writer who has only just
		// begun, leaves an empty file, which must not take all limits away.
		p.add(position{f.Name, 1, 1}, "this file is empty; write domain: and descriptors:, or remove the file")
	}
	for _, root := range roots {
		if d, ok := r.readDocument(root); ok {
			d.give(to(d.domain))
		}
	}
	return true
}

func (d *document) give(take func(*descriptor)) {
	for _, child := range d.descriptors {
		take(child)
	}
}

// plainDomains are the domains of a text's documents, empty where a document's rules must not count. Nil: plain cannot
// parse all of the text.
func plainDomains(text string, process *Process) (domains []string) {
	r := newReader(File{}, &problems{}, process)
	s := newPlain(text, func(*yaml.Node) { process.rest() })
	for {
		root, ok := s.document()
		switch {
		case !ok:
			return nil
		case root == nil:
			return domains
		}
		d, _ := r.readDocument(root) // what is wrong is said when it is read again
		domains = append(domains, strings.Clone(d.domain))
	}
}

// readPlain reads a text of these domains by plain.
func (r *reader) readPlain(text string, domains []string, to receiver) {
	var take func(*descriptor)
	s := r.stream(text, func(d *descriptor) { take(d) })
	for _, domain := range domains {
		take = func(*descriptor) {}
		if domain != "" {
			take = to(domain)
		}
		root, _ := s.document() // plainDomains has seen it
		d, _ := r.readDocument(root)
		d.give(take)
	}
}

// stream parses a text by plain, and reads one descriptor after the other, all in the same memory.
func (r *reader) stream(text string, take func(*descriptor)) *plain {
	s := newPlain(text, func(item *yaml.Node) {
		take(r.readDescriptor(item))
		r.limitPool.used, r.descriptorPool.used = 0, 0
	})
	s.texts = &texts{}
	return s
}

func newReader(f File, p *problems, process *Process) *reader {
	r := &reader{problems: p, file: f.Name, process: process}
	r.documents = r.documentShape()
	r.descriptors = r.descriptorShape()
	r.rateLimits = r.rateLimitShape()
	r.replaces = newShape[place]("an item of replaces")
	r.replaces.required(r, "name", "the limit that this one replaces", func(p *place) *string { return &p.name })
	return r
}

// readDocument reads a document. It is false if its rules must not count.
func (r *reader) readDocument(root *yaml.Node) (d document, ok bool) {
	before := r.errors()
	if is := otherDocument(root); is != "" {
		r.add(r.at(root), "this is %s, not a rule file; move it out of the rules' folder", is)
	} else {
		readFields(r, root, r.documents, &d)
	}
	rules := r.rules
	r.rules = 0
	if d.domain == "" || r.overflow {
		r.incomplete = true
		return d, false
	}
	if rules == 0 && r.errors() == before {
		// A writer who has only just begun leaves such a file, as it leaves an empty one: it must not take all limits away.
		at := d.listAt
		if at.line == 0 {
			at = r.at(root)
		}
		r.add(at, "domain %s has no rules here, so that nothing would be limited; write descriptors: with at least one rule "+
			"(- key: none limits nothing), or remove this part of the file", shown(d.domain))
	}
	return d, true
}

func (r *reader) documentShape() *shape[document] {
	s := newShape[document]("a rule file")
	s.required(r, "domain", "the domain that Envoy's rate limit filter sends", func(d *document) *string { return &d.domain })
	s.field("descriptors", func(n *yaml.Node, d *document) { d.descriptors, d.listAt = r.readDescriptors(n), r.at(n) })
	s.field("name", func(n *yaml.Node, _ *document) { r.text(n) }) // Envoy Gateway writes it; it means nothing here
	forPeople(r, s)
	s.synonyms = documentSynonyms
	return s
}

func (r *reader) descriptorShape() *shape[descriptor] {
	s := newShape[descriptor]("a descriptor")
	flag := func(name string, of func(d *descriptor) *bool) {
		s.field(name, func(n *yaml.Node, d *descriptor) { *of(d) = r.boolean(n) })
	}
	s.required(r, "key", "the name of a descriptor entry that Envoy sends", func(d *descriptor) *string { return &d.key })
	s.field("value", func(n *yaml.Node, d *descriptor) { d.value, d.valueAt = r.text(n), r.at(n) })
	s.field("rate_limit", func(n *yaml.Node, d *descriptor) {
		if !isNull(resolve(n)) { // left empty: none, as in envoyproxy/ratelimit
			d.limit = r.readRateLimit(n)
		}
	})
	s.field("rate_limits", func(n *yaml.Node, d *descriptor) { d.limits = r.readRateLimits(n) })
	s.field("descriptors", func(n *yaml.Node, d *descriptor) { d.children = r.readDescriptors(n) })
	flag("shadow_mode", func(d *descriptor) *bool { return &d.shadow })
	flag("quota_mode", func(d *descriptor) *bool { return &d.quota })
	flag("detailed_metric", func(d *descriptor) *bool { return &d.detailedMetric })
	flag("value_to_metric", func(d *descriptor) *bool { return &d.valueToMetric })
	s.field("share_threshold", func(n *yaml.Node, d *descriptor) { d.share, d.shareAt = r.boolean(n), r.at(n) })
	flag("hash_values", func(d *descriptor) *bool { return &d.hash })
	s.field("metadata", func(n *yaml.Node, d *descriptor) { d.metadata = r.metadata(n) })
	s.field("description", func(n *yaml.Node, d *descriptor) { d.description = r.text(n) })
	s.field("owner", func(n *yaml.Node, d *descriptor) { d.owner = r.text(n) })
	s.extra = func(name string, n *yaml.Node, d *descriptor) {
		if d.extra == nil {
			d.extra = map[string]any{}
		}
		d.extra[strings.Clone(name)] = extra(n)
	}
	addForms(r, s)
	s.field("response", func(n *yaml.Node, d *descriptor) { d.response = r.response(n) })
	s.synonyms = descriptorSynonyms
	return s
}

func (r *reader) readDescriptors(n *yaml.Node) (all []*descriptor) {
	r.list(n, "descriptors", func(item *yaml.Node) { all = append(all, r.readDescriptor(item)) })
	return all
}

func (r *reader) readDescriptor(n *yaml.Node) *descriptor {
	r.process.rest()
	r.rules++
	d := r.descriptorPool.next()
	*d = descriptor{at: r.at(n)}
	readFields(r, n, r.descriptors, d)
	if d.limit != nil && d.limits != nil {
		r.add(d.at, "rate_limit and rate_limits are both given; move the one into the other")
	}
	if d.value != "" && d.match.form != noForm {
		r.add(d.match.at, "value and %s are both given; write two descriptors", d.match.form)
	}
	r.warnLiteral(d)
	return d
}

// readRateLimits reads a list of limits: never nil.
func (r *reader) readRateLimits(n *yaml.Node) []*rateLimit {
	all := []*rateLimit{}
	before := r.errors()
	if resolve(n).Kind == yaml.MappingNode {
		r.add(r.at(n), "rate_limits must be a list (lines that start with -), got fields; write rate_limit for one limit, or a - before it")
		return all
	}
	r.list(n, "rate_limits", func(item *yaml.Node) {
		if l := r.readRateLimit(item); l != nil {
			all = append(all, l)
		}
	})
	if len(all) == 0 && r.errors() == before {
		r.add(r.at(n), "rate_limits is empty; write at least one limit, or leave it out")
	}
	r.checkTogether(all)
	return all
}

// checkTogether checks what the limits of one list must be to each other.
func (r *reader) checkTogether(all []*rateLimit) {
	byName, byPolicy := map[string]position{}, map[any]position{}
	for _, l := range all {
		if first, ok := byName[l.name]; ok && l.name != "" {
			r.add(l.place("name"), "the name %s is already used at %s; name each limit of a descriptor differently", l.name, first)
		}
		byName[l.name] = l.place("name")
		if l.unlimited {
			r.add(l.place("unlimited"), "unlimited among other limits says nothing; remove it, or write rate_limit: {unlimited: true}")
		}
		if l.shared == nil {
			continue
		}
		if first, ok := byPolicy[l.shared.Identity()]; ok {
			r.add(l.at, "this limit is the same as the one at %s; remove one of the two", first)
		} else {
			byPolicy[l.shared.Identity()] = l.at
		}
	}
	r.warnRedundant(all)
	r.warnManyLimits(all)
}

// place is where the field is written, else where the limit is.
func (l *rateLimit) place(field string) position {
	for _, g := range l.given {
		if g.name == field {
			return g.at
		}
	}
	return l.at
}

// lacks says that the field is not written, nor seems to be by another name.
func (l *rateLimit) lacks(field string) bool {
	return !l.has(field) && !slices.Contains(l.meant, field)
}

func (l *rateLimit) has(field string) bool {
	for _, g := range l.given {
		if g.name == field {
			return true
		}
	}
	return false
}
