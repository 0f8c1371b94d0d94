package rls

import (
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// scratch is what one request is decoded and decided in, kept from request to request.
type scratch struct {
	o         *Options
	questions []question          // one a descriptor
	entries   []descriptors.Entry // of all descriptors
	replaced  []string            // names of limits that do not count in this request
	// isReplacing has the names of replaced once they are many and one was looked for: each request makes its own.
	isReplacing map[string]bool
	limits      []*descriptors.Limit // limits[i] is what hits[i] asks
	hits        []limiter.Hit
	out         []limiter.Decision
	keys        []byte // of all hits
	ends        []int  // of the hits' keys
	response    []byte

	domain      string
	rules       *descriptors.Domain // of the domain; nil if it has none
	addend      uint32              // the request's hits_addend
	descriptors int                 // how many came: more than questions if they are too many
	metadata    bool                // a matched rule has `metadata`
	over        bool                // the request is denied
	quotaDenies bool                // every quota descriptor of the request is over
}

// question is one descriptor of the request.
type question struct {
	from, to    int             // its entries
	entries     int             // how many came: more than from and to say if they are too many
	addend      wrapped[uint64] // its hits_addend
	negative    bool            // is_negative_hits
	own         override        // the limit that it brings along
	n           int64           // its cost
	window      time.Duration   // of the limit that it brings along; 0 if it brings none
	rule        *descriptors.Rule
	limits      []*descriptors.Limit // as matched
	first, last int                  // its hits: none if first == last
	tightest    int                  // the hit that its status shows
}

func (sc *scratch) reset() {
	clear(sc.questions)
	clear(sc.entries)
	clear(sc.replaced)
	clear(sc.limits)
	clear(sc.hits)
	*sc = scratch{
		o:         sc.o,
		questions: sc.questions[:0],
		entries:   sc.entries[:0],
		replaced:  sc.replaced[:0],
		limits:    sc.limits[:0],
		hits:      sc.hits[:0],
		out:       sc.out[:0],
		keys:      sc.keys[:0],
		ends:      sc.ends[:0],
		response:  sc.response[:0],
	}
}

// add makes a question of entries that came without a wire.
func (sc *scratch) add(entries []descriptors.Entry) *question {
	from := len(sc.entries)
	sc.entries = append(sc.entries, entries...)
	sc.questions = append(sc.questions, question{from: from, to: len(sc.entries), entries: len(entries)})
	return &sc.questions[len(sc.questions)-1]
}

// match finds the rule and the limits of each descriptor, and the names that are replaced.
func (sc *scratch) match(domain *descriptors.Domain) error {
	for i := range sc.questions {
		q := &sc.questions[i]
		entries := sc.entries[q.from:q.to]
		q.rule = domain.Match(entries)
		if q.rule != nil {
			q.limits = q.rule.Limits
			sc.replaced = append(sc.replaced, q.rule.Replaces...)
			sc.metadata = sc.metadata || q.rule.Metadata != nil
		}
		if q.window != 0 {
			l, err := domain.Override(entries, q.own.requests, q.window)
			if err != nil {
				return invalid("descriptors[%d].limit: %v", i, err)
			}
			q.limits = []*descriptors.Limit{l}
		}
		for _, l := range q.limits {
			sc.replaced = append(sc.replaced, l.Replaces...)
		}
	}
	return nil
}

// scanned is how many names are looked through one by one: up to there that is cheaper than a map.
const scanned = 16

// isReplaced says whether a limit of that name does not count in this request.
func (sc *scratch) isReplaced(name string) bool {
	if name == "" || len(sc.replaced) <= scanned {
		return name != "" && slices.Contains(sc.replaced, name)
	}
	if sc.isReplacing == nil {
		sc.isReplacing = make(map[string]bool, len(sc.replaced))
		for _, name := range sc.replaced {
			sc.isReplacing[name] = true
		}
	}
	return sc.isReplacing[name]
}

// count makes a hit of every limit that is not replaced. The keys of all hits are one allocation. The error is of a
// request that asks too many counters.
func (sc *scratch) count() error {
	for i := range sc.questions {
		q := &sc.questions[i]
		q.first = len(sc.hits)
		for _, l := range q.limits {
			if sc.isReplaced(l.Name) {
				continue
			}
			if len(sc.hits) == sc.o.MaxCounters {
				return invalid("descriptors: their rules have more than %d limits together; "+
					"give these rules fewer limits, send fewer descriptors, or raise --max-counters", sc.o.MaxCounters)
			}
			sc.keys = l.AppendKey(sc.keys, sc.entries[q.from:q.to])
			sc.ends = append(sc.ends, len(sc.keys))
			sc.limits = append(sc.limits, l)
			sc.hits = append(sc.hits, limiter.Hit{Policy: l.Policy, N: q.n, Look: q.n == 0, Mode: l.Rule.Mode, Group: i})
		}
		q.last = len(sc.hits)
	}
	keys, start := string(sc.keys), 0
	for i, end := range sc.ends {
		sc.hits[i].Key, start = keys[start:end], end
	}
	if n := len(sc.hits); cap(sc.out) < n {
		sc.out = make([]limiter.Decision, n)
	} else {
		sc.out = sc.out[:n]
	}
	return nil
}
