// Package step is what one limit does to the state of one counter: what stores need to know of a limiter.Policy, and
// its users do not. A policy has it as its Core.
package step

import (
	"math"
	"sync/atomic"
	"time"
)

// Bounds of the numbers.
const (
	// Exact is the largest integer below which every integer is exact in a double: Lua's numbers in Redis.
	Exact = 1<<53 - 1
	// Horizon bounds how far ahead of now a step may move a counter, in microseconds (142 years): together with the time
	// since 1970 it stays below Exact.
	Horizon = 1 << 52
	// Never is a delay that does not end.
	Never = time.Duration(math.MaxInt64)
)

// Bounds of a limit's parameters.
const (
	MaxLimit      = 1 << 48                   // hits; large ones need round rates: see limiter.NewPolicy
	MaxCost       = math.MaxUint32            // hits, of algorithms by which later requests pay for a large one
	MinWindow     = time.Millisecond          // shortest window
	MaxWindow     = 10 * 365 * 24 * time.Hour // longest window
	MaxSegments   = 1000                      // of a sliding window
	MaxColdFactor = 100 * 100                 // hundredths
	MaxLogEntries = 10_000                    // default bound of a sliding log's limit
	MaxWait       = time.Hour                 // longest max_wait, longest burst_seconds, and longest warm_up
)

// State is one counter's state: two integers for most algorithms, a list for those that remember more. What
// the numbers mean is said where the algorithm is. The zero State is a counter that was never hit.
//
// A List is never changed in place where a reader of an older State could see it.
type State struct {
	A, B int64
	List []int64
}

// IsNew reports whether the state is that of a counter that was never hit.
func (s *State) IsNew() bool { return s.A == 0 && s.B == 0 && len(s.List) == 0 }

// Charge says what a step takes of a counter.
type Charge uint8

// The values of Charge.
const (
	IfFits    Charge = iota // the cost if it fits, else nothing
	OrPenalty               // the cost if it fits, else what ChargeDenied says
	Penalty                 // what ChargeDenied says, whether or not the cost fits
	Nothing
	Spend // what is left, up to the cost, or all of the cost where ChargeDenied is ChargeFull
)

// Algorithm is the arithmetic of one limit. It is immutable, and safe for concurrent use.
type Algorithm interface {
	// Step decides a cost of n hits at time now, in microseconds since the Unix epoch, on state s. next is meaningful if
	// o.Is has Changes. It shares no memory with s.List that a later step could change. All arguments and results are in
	// registers: this halves what a step costs.
	Step(s State, now, n int64, c Charge) (next State, o Outcome)
	// Args are the numbers that the Lua twin of Step reads, in the order that the head of its file gives. All are from 0
	// on and below 2^53.
	Args() []int64
	// Traits are what stores and callers need to know about the limit.
	Traits() Traits
}

// TakesBack is an Algorithm whose hits are given back one by one: limiter.Hit.TakenAt and OrOldest.
type TakesBack interface {
	TakesBack(takenAt int64, orOldest bool, now int64) Algorithm
}

// Dated is an Algorithm that has numbers for its Lua twin which depend on the time.
type Dated interface {
	// Edges are where the windows around now begin, the one before the current one first, in microseconds since the Unix
	// epoch; nil if the limit has no such windows. They are not to be changed.
	Edges(now int64) []int64
}

// Outcome is what a step decides: a limiter.Decision in four words.
type Outcome struct {
	Is        Verdict
	Remaining int64
	Delay     time.Duration // RetryAfter if the hit does not fit, Wait or TakenAt if it does
	Reset     time.Duration
}

// Verdict is a set of bits.
type Verdict uint8

// The bits of a Verdict.
const (
	Fits    Verdict = 1 << iota // limiter.Decision.Allowed
	Changes                     // the next state differs from the one before
	Cuts                        // the state before was further ahead than the policy can put it
	Holds                       // the hit was taken to be given back: Delay is limiter.Decision.TakenAt
)

// VerdictOf is the verdict of a hit that fits if ok, changes the state if changed, and has cut it so if isCut.
func VerdictOf(ok, changed, isCut bool) Verdict {
	v := Verdict(0)
	if ok {
		v = Fits
	}
	if changed {
		v |= Changes
	}
	if isCut {
		v |= Cuts
	}
	return v
}

// Kind is a set of what is true of every limit of an algorithm.
type Kind uint8

// The bits of a Kind.
const (
	KeepsList  Kind = 1 << iota // its states carry a List
	InWindows                   // it counts in windows, which end as a whole: State.A is when one began
	InFlight                    // it counts requests in flight: negative hits are routine
	Prepayable                  // hits can be charged before their requests come, and refunded without a trace
	ShowsLeft                   // its counter is what is left, not what is used
	IsRate                      // it lets hits pass at a rate, which can be slower
)

// Is reports whether the kind has the bit.
func (k Kind) Is(bit Kind) bool { return k&bit != 0 }

// Traits are what is true of one limit.
type Traits struct {
	Script   string // the file in redisstore/lua that mirrors Step
	Capacity int64  // the most hits that can pass at once
	Largest  int64  // the highest cost, in hits, that can ever fit
	MaxWait  time.Duration
	// Linger is how long a bucket that starts empty is remembered after it became full.
	Linger time.Duration
	// OnWall: its windows begin where the clocks on the wall say so.
	OnWall bool
	// PaysLater: a cost of several hits passes where one hit does, so that later ones pay for it.
	PaysLater bool
	// Cacheable: a denial holds until its RetryAfter whatever else is charged, since a denial can only be pushed further
	// away by other hits, and a denied hit is not charged, or not so that it shows.
	Cacheable bool
	// Partial: what remains may be of a part of the window only.
	Partial bool
	// LooksAtLimit: a hit that only looks may fit where a hit of cost 1 does not.
	LooksAtLimit bool
	// Extra is how many hits of cost 1 can pass in a window beyond Limit.
	Extra int64
	// Overshoots: a request that passes may cost more than one hit beyond that.
	Overshoots bool
}

// Core is a limit as its policy has it.
type Core struct {
	Algorithm
	Traits
	Kind
	// Counter names what the counter holds, such as "tokens" or "count".
	Counter string
	// Packed is the limit as redisstore sends it.
	Packed atomic.Value
}
