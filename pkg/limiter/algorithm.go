package limiter

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Algorithm names how a limit counts: docs/algorithms says when to choose which. Each constant stands in the file of
// its algorithm. The zero value is no algorithm.
type Algorithm uint8

// algorithms is the table of all algorithms. A further one is a line here and a file beside this one; CONTRIBUTING.md
// lists the rest. Numbers are never reused, since Lua reads them.
var algorithms = [...]struct {
	name string
	// make checks the parameters that only this algorithm has, sets their defaults in place, and scales. It is not
	// called for a limit of 0, which denies everything, unless the algorithm counts in windows.
	make func(in *Params) (algorithm, error)
	// params names the parameters that the algorithm takes besides Limit, Window and ChargeDenied.
	params string
	// counter names what Policy.Counter returns.
	counter string
	is      kind
}{
	FixedWindow: {"fixed_window", newFixedWindow, "align time_zone", "count", inWindows | prepayable},
	Funnel:      {"funnel", newFunnel, "burst", "level", prepayable | isRate},
	TokenBucket: {
		"token_bucket", newTokenBucket, "burst initial refill", "tokens", showsLeft | prepayable | isRate,
	},
	SlidingWindow: {"sliding_window", newSlidingWindow, "segments segment_cap oldest", "count", keepsList | prepayable},
	SlidingLog:    {"sliding_log", newSlidingLog, "max_log_entries", "count", keepsList | prepayable},
	SmoothBursty: {
		"smooth_bursty", newSmoothBursty, "burst_for initial max_wait max_cost", "stored", showsLeft | isRate,
	},
	LeakyQueue:  {"leaky_queue", newLeakyQueue, "burst max_wait", "queued", isRate},
	Concurrency: {"concurrency", newConcurrency, "lease max_log_entries", "in_use", keepsList | inFlight},
	SmoothWarmingUp: {
		"smooth_warming_up", newWarmingUp, "warm_up cold_factor max_wait max_cost", "stored", showsLeft | keepsList | isRate,
	},
}

// kind is a set of what is true of every limit of an algorithm.
type kind uint8

const (
	keepsList  kind = 1 << iota // its states carry a List
	inWindows                   // it counts in windows, which end as a whole, whether or not a hit was counted in them
	inFlight                    // it counts requests in flight: negative hits are routine
	prepayable                  // hits can be charged before their requests come, and refunded without a trace
	showsLeft                   // its counter is what is left, not what is used
	isRate                      // it lets hits pass at a rate, which can be slower
)

// algorithm is the arithmetic of one limit. It is immutable, and safe for concurrent use.
type algorithm interface {
	// step decides a cost of n hits at time now, in microseconds since the Unix epoch, on state s. next is meaningful if
	// o.changes. It shares no memory with s.List that a later step could change. All arguments and results are in
	// registers: this halves what a step costs.
	step(s State, now, n int64, c Charge) (next State, o outcome)
	// args are the numbers that the Lua twin of step reads, in the order that the head of its file gives. All are from 0
	// on and below 2^53.
	args() []int64
	// traits are what stores and callers need to know about the limit.
	traits() traits
}

// traits are an algorithm's answers to the questions of Policy.
type traits struct {
	script   string // the file in redisstore/lua that mirrors step
	capacity int64
	largest  int64
	maxWait  time.Duration
	// linger is how long a bucket that starts empty is remembered after it became full.
	linger    time.Duration
	onWall    bool
	paysLater bool
	// A denial can only be pushed further away by other hits, and a denied hit is not charged so that it shows.
	cacheable bool
	// What remains may be of a part of the window only.
	partial bool
	// extra is how many hits of cost 1 can pass in a window beyond Limit.
	extra int64
	// overshoots: a request that passes may cost more than one hit beyond that.
	overshoots bool
}

// denyAll is a limit of 0. It has no state.
type denyAll struct{}

func (denyAll) step(_ State, _, n int64, _ Charge) (State, outcome) {
	if n < 0 {
		return State{}, outcome{is: fits}
	}
	return State{}, outcome{delay: Never}
}

func (denyAll) args() []int64 { return []int64{0} } // which every Lua step denies

func (denyAll) traits() traits { return traits{script: "funnel", cacheable: true} }

func (a Algorithm) known() bool { return int(a) < len(algorithms) && algorithms[a].name != "" }

// String is the algorithm's name, "" if there is no such algorithm.
func (a Algorithm) String() string {
	if !a.known() {
		return ""
	}
	return algorithms[a].name
}

// Algorithms returns all algorithms in the order of their numbers.
func Algorithms() []Algorithm {
	var all []Algorithm
	for a := range algorithms {
		if Algorithm(a).known() {
			all = append(all, Algorithm(a))
		}
	}
	return all
}

// AlgorithmNames returns the names of all algorithms in the order of their numbers.
func AlgorithmNames() []string {
	var all []string
	for _, a := range Algorithms() {
		all = append(all, a.String())
	}
	return all
}

// ParseAlgorithm returns the algorithm of that name. The error lists the names.
func ParseAlgorithm(name string) (Algorithm, error) {
	for a := range algorithms {
		if algorithms[a].name == name && name != "" {
			return Algorithm(a), nil
		}
	}
	return 0, fmt.Errorf("%q is not known: use one of %s", name, strings.Join(AlgorithmNames(), ", "))
}

// Parameters returns the names of the parameters that the algorithm takes besides its rate.
func (a Algorithm) Parameters() []string {
	if !a.known() {
		return []string{"charge_denied"}
	}
	return append(strings.Fields(algorithms[a].params), "charge_denied")
}

// Has reports whether the algorithm takes the named parameter.
func (a Algorithm) Has(param string) bool { return slices.Contains(a.Parameters(), param) }

// DefaultChargeDenied returns what ChargeDefault stands for.
func (a Algorithm) DefaultChargeDenied() ChargeDenied {
	if a.known() && algorithms[a].is&inWindows != 0 {
		return ChargeFull
	}
	return ChargeNone
}

// CountsInFlight reports whether the algorithm counts requests in flight, so that its window is how long a request
// counts that is not given back.
func (a Algorithm) CountsInFlight() bool { return a.known() && algorithms[a].is&inFlight != 0 }

// CanPrepay reports whether hits can be charged before their requests come, and refunded without a trace where none
// come. They cannot where an answer depends on the moment at which each request comes.
func (a Algorithm) CanPrepay() bool { return a.known() && algorithms[a].is&prepayable != 0 }
