package descriptors

import (
	"maps"
	"slices"
	"sync"
)

// sequences matches many patterns with the same prefix and a non-empty middle in one pass over the value.
//
// The middles form a tree of steps, in which patterns share the steps of their common first texts. The root is the
// prefix; each step below is one more text. A value takes a step at the first occurrence of the text after the text of
// the step above, which leaves the most room for the texts that follow. The automaton of Aho and Corasick (1975) finds
// all texts at once.
type sequences struct {
	begin int    // length of the prefix
	steps []step // the first is the root
	nodes []state
	root  [256]int32 // by byte: next state from the root; 0 if no text begins with the byte
	bytes []byte     // labels of the edges between states
	to    []int32    // targets of the edges
	found []found    // texts found, in the order of their states
	tails *affixes   // all patterns by suffix
	pool  sync.Pool  // elements are *progress; only for more than maxSteps steps
}

// step is one text in a sequence of texts.
type step struct {
	first int      // order of the first pattern that ends here or below
	ends  *affixes // by suffix, patterns that end here; nil if there are none
}

// state is a prefix of texts that equals the last bytes of the value.
type state struct {
	edges, more int32 // index of the first edge, and number of edges
	fail        int32 // state of the longest proper suffix of these bytes that is a prefix of texts
	output      int32 // nearest state along fail that has found texts; 0: none
	found, many int32 // index of the first found text, and number of found texts
}

// found is a text that leads from one step to another.
type found struct {
	from, to int32
	length   int32
}

// progress is the state of one search.
type progress struct {
	at    []uint16 // by step: 1 + end of its text; 0 if the step was not taken
	taken []int32  // steps that were taken
}

// maxSteps is the maximum number of steps whose progress fits on the stack.
const maxSteps = 128

// sequences builds the automaton for patterns with a middle, in file order.
func (c *Builder) sequences(patterns []*Pattern) *sequences {
	ps := &sequences{
		begin: len(patterns[0].prefix), steps: []step{{first: patterns[0].order}}, tails: c.index(patterns, true),
	}
	type edge struct {
		from int32
		text string
	}
	index := map[edge]int32{}
	endings := map[int32][]*Pattern{}
	texts := map[string][]found{}
	for _, p := range patterns {
		at := int32(0)
		for _, text := range p.middle {
			to, ok := index[edge{at, text}]
			if !ok {
				to = int32(len(ps.steps)) //nolint:gosec // rules are fewer
				ps.steps = append(ps.steps, step{first: p.order})
				index[edge{at, text}] = to
				texts[text] = append(texts[text], found{at, to, int32(len(text))}) //nolint:gosec // texts are short
			}
			at = to
		}
		endings[at] = append(endings[at], p)
	}
	for at, all := range endings {
		ps.steps[at].ends = c.index(all, true)
	}
	for i := range ps.tails.groups {
		tail := &ps.tails.groups[i]
		for _, p := range tail.few {
			tail.enforced |= p.enforced
		}
	}
	ps.pool.New = func() any { return &progress{at: make([]uint16, len(ps.steps))} }
	ps.build(texts)
	return ps
}

// look searches the value's head, which has the patterns' prefix, for their texts.
func (ps *sequences) look(s *search) {
	if len(ps.steps) <= maxSteps {
		var at [maxSteps]uint16
		ps.find(s, at[:], nil)
	} else {
		p := ps.pool.Get().(*progress) //nolint:errcheck // the pool holds only *progress
		ps.find(s, p.at, p)
		for _, step := range p.taken {
			p.at[step] = 0
		}
		p.taken = p.taken[:0]
		ps.pool.Put(p)
	}
	if s.isLong() {
		ps.tails.look(s, s.value, toLeaveOpen)
	}
}

// find takes all possible steps in the value's head, and sets at. Unless taken is nil, it records the steps there.
func (ps *sequences) find(s *search, at []uint16, taken *progress) {
	state := int32(0)
	for i := ps.begin; i < len(s.head); i++ {
		if c := s.head[i]; state == 0 {
			state = ps.root[c]
		} else {
			state = ps.step(state, c)
		}
		n := &ps.nodes[state]
		for {
			for j := n.found; j < n.found+n.many; j++ {
				if f := &ps.found[j]; ps.take(s, at, f, i+1) && taken != nil {
					taken.taken = append(taken.taken, f.to)
				}
			}
			if n.output == 0 {
				break
			}
			n = &ps.nodes[n.output]
		}
	}
}

// take takes a step if its text, which ends at end, begins after the end of the text of the step above.
func (ps *sequences) take(s *search, at []uint16, f *found, end int) bool {
	to := &ps.steps[f.to]
	if !s.isBefore(to.first) || at[f.to] != 0 {
		return false
	}
	if before := int(at[f.from]); f.from != 0 && (before == 0 || before-1 > end-int(f.length)) {
		return false
	}
	at[f.to] = uint16(end + 1) //nolint:gosec // no more than MaxPatternValue
	if to.ends != nil {
		to.ends.look(s, s.value[end:], toMatch)
	}
	return true
}

func (ps *sequences) build(texts map[string][]found) {
	sorted := slices.Sorted(maps.Keys(texts))
	ps.nodes = make([]state, 1)
	type span struct {
		texts       []string
		state, size int
	}
	// Breadth first, so that the state to which fail leads exists already.
	for todo := []span{{sorted, 0, 0}}; len(todo) > 0; todo = todo[1:] {
		s := todo[0]
		n := &ps.nodes[s.state]
		if len(s.texts[0]) == s.size {
			all := texts[s.texts[0]]
			n.found, n.many = int32(len(ps.found)), int32(len(all)) //nolint:gosec // as above
			ps.found = append(ps.found, all...)
			s.texts = s.texts[1:]
		}
		n.edges = int32(len(ps.to)) //nolint:gosec // as above
		for len(s.texts) > 0 {
			first, same := s.texts[0][s.size], 1
			for same < len(s.texts) && s.texts[same][s.size] == first {
				same++
			}
			to := len(ps.nodes)
			next := state{}
			if s.state != 0 {
				next.fail = ps.step(ps.nodes[s.state].fail, first)
			}
			ps.nodes = append(ps.nodes, next)
			ps.nodes[s.state].more++
			ps.bytes, ps.to = append(ps.bytes, first), append(ps.to, int32(to)) //nolint:gosec // as above
			if s.state == 0 {
				ps.root[first] = int32(to) //nolint:gosec // as above
			}
			todo = append(todo, span{s.texts[:same], to, s.size + 1})
			s.texts = s.texts[same:]
		}
	}
	for i := range ps.nodes[1:] { // the state to which fail leads has a lower index
		n := &ps.nodes[1+i]
		if n.output = n.fail; ps.nodes[n.fail].many == 0 {
			n.output = ps.nodes[n.fail].output
		}
	}
}

func (ps *sequences) step(at int32, next byte) int32 {
	for at != 0 {
		n := &ps.nodes[at]
		lo, hi := n.edges, n.edges+n.more
		for hi-lo > 4 {
			if middle := (lo + hi) / 2; ps.bytes[middle] <= next {
				lo = middle
			} else {
				hi = middle
			}
		}
		for ; lo < hi; lo++ {
			if ps.bytes[lo] == next {
				return ps.to[lo]
			}
		}
		at = n.fail
	}
	return ps.root[next]
}

// cost returns the maximum number of table look-ups per byte.
func (ps *sequences) cost() int {
	most := int32(0) // maximum number of texts found at one byte
	sums := make([]int32, len(ps.nodes))
	for i := range ps.nodes { // the state to which output leads has a lower index
		n := &ps.nodes[i]
		if sums[i] = n.many; n.output != 0 {
			sums[i] += sums[n.output]
		}
		most = max(most, sums[i])
	}
	return 8 + 2*int(most)
}
