package descriptors

import (
	"maps"
	"slices"
	"sync"
)

// sequences matches many patterns that begin with the same fixed text, and have texts between two *, in one pass over
// the value.
//
// The sequences of these texts are a tree, in which patterns share what they have in common: the root stands for the
// fixed beginning, and each step below for one more text. A value takes a step where the text first occurs behind
// that of the step above, which leaves most room for what follows. All texts are found at once by the automaton of
// Aho and Corasick (1975).
type sequences struct {
	begin int    // the length of the fixed beginning
	steps []step // the root is the first
	nodes []state
	root  [256]int32 // state after the byte, from the root: 0 if no text begins with it
	bytes []byte     // of the edges between states
	to    []int32    // where they lead
	found []found    // by state: what has been found when it is reached
	tails *affixes   // all patterns by their fixed end
	pool  sync.Pool  // of *progress, for more steps than maxSteps
}

// step is one text in a sequence of texts between two *.
type step struct {
	first int      // the order of the first pattern here or below
	ends  *affixes // the patterns that end here, by their fixed ends; nil if none does
}

// state is what the value's last bytes are the beginning of.
type state struct {
	edges, more int32 // the first edge, and how many there are
	fail        int32 // the state of the longest end of the same bytes that is another text's beginning
	output      int32 // the nearest state by fail that has found something; 0: none
	found, many int32 // what has been found
}

// found is a text that leads from one step to the next.
type found struct {
	from, to int32
	length   int32
}

// progress is how far a value has got.
type progress struct {
	at    []uint16 // by step: 1 + where its text ends; 0 if it has not been found
	taken []int32  // the steps that have been found
}

// maxSteps is how many steps fit on the stack.
const maxSteps = 128

// sequences builds the automaton for patterns with texts between two *, in file order.
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

// look looks for the patterns' texts in the value's head, which begins with their prefix.
func (ps *sequences) look(s *search) {
	if len(ps.steps) <= maxSteps {
		var at [maxSteps]uint16
		ps.find(s, at[:], nil)
	} else {
		p := ps.pool.Get().(*progress) //nolint:errcheck // Builder.sequences makes no others
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

// find takes all steps that the value's head takes, and sets at. It notes them in taken, unless that is nil.
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

// take takes a step if the text that leads to it, which ends there, is behind that of the step before.
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
	// By breadth, so that whatever fail leads to is there before.
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
	for i := range ps.nodes[1:] { // a state that fail leads to is before
		n := &ps.nodes[1+i]
		if n.output = n.fail; ps.nodes[n.fail].many == 0 {
			n.output = ps.nodes[n.fail].output
		}
	}
}

// step is the state after the next byte.
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

// cost is how many steps of a table a byte may take.
func (ps *sequences) cost() int {
	most := int32(0) // what may be found at one byte
	sums := make([]int32, len(ps.nodes))
	for i := range ps.nodes { // what output leads to is before
		n := &ps.nodes[i]
		if sums[i] = n.many; n.output != 0 {
			sums[i] += sums[n.output]
		}
		most = max(most, sums[i])
	}
	return 8 + 2*int(most)
}
