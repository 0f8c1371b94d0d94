package descriptors

import (
	"errors"
	"fmt"
	"math/bits"
	"regexp/syntax"
	"slices"
	"unicode"
	"unicode/utf8"
)

// Bounds of an automaton.
const (
	maxStates  = 2000
	maxClasses = 256
)

// automaton is the deterministic automaton of a regex, built when rules load. It decides whether a whole text matches
// in one step per character. (Go's regexp takes a step per character and per part of the expression.)
type automaton struct {
	ascii   [utf8.RuneSelf]uint8 // class of each ASCII character; characters of one class lead to the same states
	bounds  []rune               // first characters of ranges beyond ASCII with one class each
	classes []uint8              // classes of these ranges
	stride  uint32               // number of classes
	next    []uint32             // next state by state+class; a state is a multiple of stride, and state 0 never matches
	start   uint32
	is      []stateKind // by state/stride
}

type stateKind uint8

const (
	accepts stateKind = 1 << iota // a text that ends in this state matches
	settled                       // every text that goes on from this state matches
)

// decide reports whether a value matches if its head leads to state.
func (a *automaton) decide(s *search, state uint32) answer {
	switch is := a.is[state/a.stride]; {
	case state == 0:
		return no
	case s.isLong() && is&settled == 0:
		return unsure
	case is&accepts != 0:
		return yes
	default:
		return no
	}
}

// run returns the state after the text.
func (a *automaton) run(text string) (state uint32) {
	state = a.start
	for i := 0; i < len(text) && state != 0; {
		if c := text[i]; c < utf8.RuneSelf {
			state = a.next[state+uint32(a.ascii[c])]
			i++
			continue
		}
		char, size := utf8.DecodeRuneInString(text[i:])
		state = a.next[state+uint32(a.class(char))]
		i += size
	}
	return state
}

// class returns the class of a character beyond ASCII.
func (a *automaton) class(char rune) uint8 {
	i, isBound := slices.BinarySearch(a.bounds, char)
	if !isBound {
		i-- // the last bound before char; the first bound is the end of ASCII
	}
	return a.classes[i]
}

// newAutomaton builds the automaton of a program that must match the whole text. It adds its number of steps to *work.
func newAutomaton(program *syntax.Prog, work *int) (*automaton, error) {
	b := builder{program: program, work: work, known: map[string]int{}, seen: make([]bool, len(program.Inst))}
	if err := b.classify(); err != nil {
		return nil, err
	}
	b.add(nil, false)                                     // the state from which no text matches
	start := b.add([]uint32{uint32(program.Start)}, true) //nolint:gosec // instructions are few
	for at := 1; at < len(b.states); at++ {
		b.expand(at)
		if *b.work > maxRegexWork {
			return nil, errWork
		}
		if len(b.states) > maxStates {
			return nil, fmt.Errorf("needs more than %d states; repeat less after .* and similar, or write several "+
				"descriptors", maxStates)
		}
	}
	b.finish(start)
	return &b.automaton, nil
}

// builder builds an automaton by the subset construction.
type builder struct {
	automaton

	program *syntax.Prog
	work    *int
	sets    []*syntax.Inst // instructions that read a character, without duplicates
	chars   []rune         // one character of each class
	states  []subset       // subsets by state
	to      [][]int        // next states, by state and class
	known   map[string]int // states by the key of their instructions
	seen    []bool         // by instruction, for follow
}

// subset is a state of the automaton: the set of instructions that the program may have reached.
type subset struct {
	at    []uint32 // sorted instructions, before follow
	begin bool     // nothing has been read yet
	end   bool     // a text that ends in this state matches
}

// classify groups the characters that the program does not distinguish into classes.
func (b *builder) classify() error {
	starts := []rune{0, utf8.RuneSelf}
	add := func(from, to rune) { starts = append(starts, from, to+1) }
	for i := range b.program.Inst {
		inst := &b.program.Inst[i]
		if len(inst.Rune) > 0 {
			isKnown := func(o *syntax.Inst) bool {
				return o.Op == inst.Op && o.Arg == inst.Arg && slices.Equal(o.Rune, inst.Rune)
			}
			if slices.ContainsFunc(b.sets, isKnown) {
				continue
			}
			b.sets = append(b.sets, inst)
		}
		switch inst.Op {
		case syntax.InstRune1, syntax.InstRune:
			if len(inst.Rune) == 1 {
				add(inst.Rune[0], inst.Rune[0])
				for char := unicode.SimpleFold(inst.Rune[0]); char != inst.Rune[0]; char = unicode.SimpleFold(char) {
					add(char, char)
				}
			}
			for j := 0; j+1 < len(inst.Rune); j += 2 {
				add(inst.Rune[j], inst.Rune[j+1])
			}
		case syntax.InstRuneAnyNotNL:
			add('\n', '\n')
			b.sets = append(b.sets, inst)
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(inst.Arg)&^(syntax.EmptyBeginText|syntax.EmptyEndText) != 0 { //nolint:gosec // as regexp does
				return errors.New("has \\b, \\B or (?m), which are not supported; write the characters that may be there")
			}
		default:
		}
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	if *b.work += len(starts) * (1 + len(b.sets)); *b.work > maxRegexWork {
		return errWork
	}
	classes := map[string]uint8{}
	for i, from := range starts {
		if from > unicode.MaxRune {
			break
		}
		key := b.signature(from)
		class, ok := classes[key]
		if !ok {
			if len(classes) == maxClasses {
				return fmt.Errorf("distinguishes more than %d classes of characters; write several descriptors", maxClasses)
			}
			class = uint8(len(classes)) //nolint:gosec // checked
			classes[key] = class
			b.chars = append(b.chars, from)
		}
		if from < utf8.RuneSelf {
			for char := from; char < starts[i+1]; char++ {
				b.ascii[char] = class
			}
			continue
		}
		if n := len(b.classes); n == 0 || b.classes[n-1] != class {
			b.bounds, b.classes = append(b.bounds, from), append(b.classes, class)
		}
	}
	b.stride = uint32(len(classes)) //nolint:gosec // checked
	return nil
}

// signature returns the set of instructions that accept the character.
func (b *builder) signature(char rune) string {
	key := make([]byte, 0, len(b.sets)/4)
	for i, inst := range b.sets {
		if matchRune(inst, char) {
			key = append(key, byte(i), byte(i>>8))
		}
	}
	return string(key)
}

// add returns the state of the instructions, which it sorts.
func (b *builder) add(at []uint32, begin bool) int {
	slices.Sort(at)
	at = slices.Compact(at)
	key := make([]byte, 0, 2*len(at)+1)
	if begin {
		key = append(key, '^')
	}
	for _, pc := range at {
		key = append(key, byte(pc), byte(pc>>8)) //nolint:gosec // instructions are few
	}
	if state, ok := b.known[string(key)]; ok {
		return state
	}
	state := len(b.states)
	b.known[string(key)] = state
	b.states = append(b.states, subset{at: at, begin: begin})
	b.to = append(b.to, make([]int, b.stride))
	return state
}

// expand computes the next states of a state.
func (b *builder) expand(state int) {
	s := b.states[state]
	var looked syntax.EmptyOp
	if s.begin {
		looked = syntax.EmptyBeginText
	}
	_, b.states[state].end = b.follow(s.at, looked|syntax.EmptyEndText)
	from, _ := b.follow(s.at, looked)
	for class, char := range b.chars {
		var to []uint32
		for _, pc := range from {
			if inst := &b.program.Inst[pc]; matchRune(inst, char) {
				to = append(to, inst.Out)
			}
		}
		*b.work += 1 + len(from)
		b.to[state][class] = b.add(to, false)
	}
}

func matchRune(inst *syntax.Inst, char rune) bool {
	switch inst.Op {
	case syntax.InstRuneAny:
		return true
	case syntax.InstRuneAnyNotNL:
		return char != '\n'
	default:
		return inst.MatchRune(char)
	}
}

// follow returns the instructions that read a character and are reachable without reading any. end reports whether the
// match instruction is reachable, too.
func (b *builder) follow(at []uint32, looked syntax.EmptyOp) (reads []uint32, end bool) {
	*b.work += len(at) + len(b.seen)/8
	clear(b.seen)
	todo := slices.Clone(at)
	for len(todo) > 0 {
		pc := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if b.seen[pc] {
			continue
		}
		b.seen[pc] = true
		switch inst := &b.program.Inst[pc]; inst.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			todo = append(todo, inst.Out, inst.Arg)
		case syntax.InstCapture, syntax.InstNop:
			todo = append(todo, inst.Out)
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(inst.Arg)&^looked == 0 { //nolint:gosec // as regexp does
				todo = append(todo, inst.Out)
			}
		case syntax.InstMatch:
			end = true
		case syntax.InstFail:
		default:
			reads = append(reads, pc)
		}
	}
	return reads, end
}

// finish finds the states that lead to no match, and those from which every text matches, and builds the table.
func (b *builder) finish(start int) {
	n := len(b.states)
	alive, sure := make([]bool, n), make([]bool, n)
	for i, s := range b.states {
		alive[i], sure[i] = s.end, s.end
	}
	for changed := true; changed; {
		changed = false
		for i := n - 1; i >= 0; i-- {
			for _, to := range b.to[i] {
				if alive[to] && !alive[i] {
					alive[i], changed = true, true
				}
				if sure[i] && !sure[to] {
					sure[i], changed = false, true
				}
			}
		}
	}
	b.next = make([]uint32, n*int(b.stride))
	b.is = make([]stateKind, n)
	of := func(state int) uint32 {
		if !alive[state] {
			return 0
		}
		return uint32(state) * b.stride //nolint:gosec // states are few
	}
	for i := range b.states {
		for class, to := range b.to[i] {
			b.next[i*int(b.stride)+class] = of(to)
		}
		if b.states[i].end {
			b.is[i] |= accepts
		}
		if sure[i] {
			b.is[i] |= settled
		}
	}
	b.start = of(start)
}

// cost returns the number of steps per character: four for two dependent look-ups, and the binary search in bounds.
func (a *automaton) cost() int {
	return 4 + bits.Len(uint(len(a.bounds)-1))
}
