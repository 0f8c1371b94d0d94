// Package step defines how a limit changes the state of a counter. A limiter.Policy has such a limit as its Core.
package step

import (
	"math"
	"sync/atomic"
	"time"
)

// Bounds of the numbers.
const (
	// Exact is the largest integer up to which every integer is exact in a double, the number type of Lua in Redis.
	Exact = 1<<53 - 1
	// Horizon is the maximum time by which a step may move a counter ahead of now, in microseconds (142 years). The sum of
	// Horizon and the time since 1970 is below Exact.
	Horizon = 1 << 52
	// Never is a delay without end.
	Never = time.Duration(math.MaxInt64)
)

// Bounds of a limit's parameters.
const (
	MaxLimit      = 1 << 48                   // hits; a large limit needs a round rate: see limiter.NewPolicy
	MaxCost       = math.MaxUint32            // hits, for algorithms that let later requests pay for a large cost
	MinWindow     = time.Millisecond          // shortest window
	MaxWindow     = 10 * 365 * 24 * time.Hour // longest window
	MaxSegments   = 1000                      // segments of a sliding window
	MaxColdFactor = 100 * 100                 // largest cold_factor, in hundredths
	MaxLogEntries = 10_000                    // default maximum of a sliding log's limit
	MaxWait       = time.Hour                 // longest max_wait, longest burst_seconds, and longest warm_up
)

// State is the state of one counter: two integers for most algorithms, and a list for the others. The file of each
// algorithm defines the meaning. The zero State is a counter without hits.
//
// A step must not change a List in place if a reader of an older State could see the change.
type State struct {
	A, B int64
	List []int64
}

// IsNew reports whether the state is the zero State.
func (s *State) IsNew() bool { return s.A == 0 && s.B == 0 && len(s.List) == 0 }

// Charge selects the number of hits that a step charges to a counter.
type Charge uint8

// The values of Charge.
const (
	IfFits    Charge = iota // the cost if it fits, else nothing
	OrPenalty               // the cost if it fits, else the charge that ChargeDenied sets
	Penalty                 // the charge that ChargeDenied sets, even if the cost fits
	Nothing
	Spend // the remaining hits, up to the cost; with ChargeFull the whole cost
)

// Algorithm is the arithmetic of one limit. It is immutable and safe for concurrent use.
type Algorithm interface {
	// Step decides a cost of n hits at time now, in microseconds since the Unix epoch, on state s. next is meaningful if
	// o.Is has Changes. next shares no memory with s.List that a later step could change. All arguments and results fit in
	// registers, which halves the time of a step.
	Step(s State, now, n int64, c Charge) (next State, o Outcome)
	// Args returns the numbers for the Lua step, which the head of the step's file lists. All are from 0 to Exact.
	Args() []int64
	// Traits returns properties of the limit for stores and callers.
	Traits() Traits
}

// TakesBack is an Algorithm that can take back a single charge: limiter.Hit.TakenAt and OrOldest.
type TakesBack interface {
	// TakesBack returns the Algorithm for a refund of that charge. Both times are in microseconds since the Unix epoch.
	TakesBack(takenAt int64, orOldest bool, now int64) Algorithm
}

// Dated is an Algorithm whose Lua step also needs numbers that depend on the time.
type Dated interface {
	// Edges returns the start times of the windows around now, from the window before the current one on, in microseconds
	// since the Unix epoch. It returns nil if the limit has no such windows. The caller must not change the slice.
	Edges(now int64) []int64
}

// Outcome is the result of a step: a limiter.Decision in four words.
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
	Changes                     // the next state differs from the old state
	Cuts                        // the old state was further ahead than the policy allows
	Holds                       // the hit must be released later, and Delay is its limiter.Decision.TakenAt
)

// VerdictOf returns a verdict with Fits if ok, Changes if changed, and Cuts if isCut.
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

// Kind is a set of properties that all limits of an algorithm have.
type Kind uint8

// The bits of a Kind.
const (
	KeepsList  Kind = 1 << iota // states have a List
	InWindows                   // hits are counted in windows, which end as a whole; State.A is the start of the window
	InFlight                    // requests in flight are counted, so negative hits are routine
	Prepayable                  // hits can be charged before their requests arrive, and refunded without a trace
	ShowsLeft                   // the counter holds the remaining hits, not the used hits
	IsRate                      // hits pass at a rate, which can be made slower
)

// Is reports whether the kind has the bit.
func (k Kind) Is(bit Kind) bool { return k&bit != 0 }

// Traits are the properties of one limit.
type Traits struct {
	Script   string // name of the file in redisstore/lua that mirrors Step
	Capacity int64  // maximum number of hits that can pass at once
	Largest  int64  // highest cost, in hits, that can ever fit
	MaxWait  time.Duration
	// Linger is the time for which a bucket that starts empty is remembered after it became full.
	Linger time.Duration
	// OnWall reports that windows begin by the wall clock.
	OnWall bool
	// PaysLater reports that a cost of several hits fits whenever one hit fits, so that later requests pay for it.
	PaysLater bool
	// Cacheable reports that a denial holds until its RetryAfter. Other hits can only postpone the end of a denial, and a
	// denied hit is not charged, or its charge does not show.
	Cacheable bool
	// Partial reports that Remaining may be about a part of the window only.
	Partial bool
	// PeeksAtLimit reports that a hit of cost 0 may fit where a hit of cost 1 does not.
	PeeksAtLimit bool
	// Extra is the number of hits of cost 1 that can pass in a window in addition to Limit.
	Extra int64
	// Reserve is limiter.Params.Reserve, 0 with ChargeFull: with it, the time after which a charge no longer counts is the
	// TakenAt of its decision. NewPolicy sets it.
	Reserve int64
	// Overshoots reports that the last request that passes may exceed Limit plus Extra by its cost minus 1.
	Overshoots bool
}

// Core is the limit of a limiter.Policy.
type Core struct {
	Algorithm
	Traits
	Kind
	// Counter is the name of the counter's content, such as "tokens" or "count".
	Counter string
	// Packed caches the policy in the form that redisstore sends.
	Packed atomic.Value
}
