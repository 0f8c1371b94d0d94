package limiter

import (
	"fmt"
	"strings"

	"github.com/weir-ratelimit/weir/internal/step"
)

// Algorithm identifies how a limit counts. The zero value is no algorithm. docs/algorithms says when to use which.
type Algorithm uint8

// algorithms is the table of all algorithms. To add an algorithm, add a row and a file beside this file;
// CONTRIBUTING.md lists the other steps. Numbers are never reused, because Lua scripts read them.
var algorithms = [...]struct {
	name string
	// make checks the parameters that only this algorithm has, sets their defaults in place, and scales the numbers. For a
	// limit of 0, which denies everything, it is called only if the algorithm counts in windows.
	make func(in *Params) (step.Algorithm, error)
	// params lists the names of the algorithm's parameters, except Limit, Window and ChargeDenied.
	params string
	// counter names the quantity that the counter holds.
	counter string
	is      step.Kind
}{
	FixedWindow: {"fixed_window", newFixedWindow, "align time_zone", "count", step.InWindows | step.Prepayable},
	Funnel:      {"funnel", newFunnel, "burst", "level", step.Prepayable | step.IsRate},
	TokenBucket: {
		"token_bucket", newTokenBucket, "burst initial refill", "tokens", step.ShowsLeft | step.Prepayable | step.IsRate,
	},
	SlidingWindow: {
		"sliding_window", newSlidingWindow, "segments segment_cap oldest", "count", step.KeepsList | step.Prepayable,
	},
	SlidingLog: {"sliding_log", newSlidingLog, "max_log_entries", "count", step.KeepsList | step.Prepayable},
	SmoothBursty: {
		"smooth_bursty", newSmoothBursty, "burst_seconds initial max_wait max_cost", "stored", step.ShowsLeft | step.IsRate,
	},
	LeakyQueue:  {"leaky_queue", newLeakyQueue, "burst max_wait", "queued", step.IsRate},
	Concurrency: {"concurrency", newConcurrency, "lease max_log_entries", "in_use", step.KeepsList | step.InFlight},
	SmoothWarmingUp: {
		"smooth_warming_up", newWarmingUp, "warm_up cold_factor max_wait max_cost", "stored",
		step.ShowsLeft | step.KeepsList | step.IsRate,
	},
}

// denyAll is the step of a limit of 0, which has no state.
type denyAll struct{}

func (denyAll) Step(_ step.State, _, n int64, _ step.Charge) (step.State, step.Outcome) {
	if n < 0 {
		return step.State{}, step.Outcome{Is: step.Fits}
	}
	return step.State{}, step.Outcome{Delay: Never}
}

func (denyAll) Args() []int64 { return []int64{0} } // the limit; every Lua step denies at 0

func (denyAll) Traits() step.Traits { return step.Traits{Script: "funnel", Cacheable: true} }

func (a Algorithm) known() bool { return int(a) < len(algorithms) && algorithms[a].name != "" }

// String returns the algorithm's name in rule files, or "" if there is no such algorithm.
func (a Algorithm) String() string {
	if !a.known() {
		return ""
	}
	return algorithms[a].name
}

// Algorithms returns all algorithms, in ascending order of their numbers.
func Algorithms() []Algorithm {
	var all []Algorithm
	for a := range algorithms {
		if Algorithm(a).known() {
			all = append(all, Algorithm(a))
		}
	}
	return all
}

// ParseAlgorithm returns the algorithm with the name. If the name is unknown, the error lists the known names.
func ParseAlgorithm(name string) (Algorithm, error) {
	for a := range algorithms {
		if algorithms[a].name == name && name != "" {
			return Algorithm(a), nil
		}
	}
	return 0, fmt.Errorf("%q is not known: use one of %s", name, strings.Join(step.Names(Algorithms()), ", "))
}

// CountsInFlight reports whether the algorithm counts requests in flight. Its Window is then a lease: a request that is
// not released counts until its lease ends.
func (a Algorithm) CountsInFlight() bool { return a.Kind().Is(step.InFlight) }

// Kind returns the properties that all limits of the algorithm share. It is for the packages of this module.
func (a Algorithm) Kind() step.Kind {
	if !a.known() {
		return 0
	}
	return algorithms[a].is
}
