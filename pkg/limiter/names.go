package limiter

import (
	"fmt"
	"slices"
	"strings"
)

var algorithmNames = map[Algorithm]string{
	FixedWindow:   "fixed_window",
	Funnel:        "funnel",
	TokenBucket:   "token_bucket",
	SlidingWindow: "sliding_window",
	SlidingLog:    "sliding_log",
	SmoothBursty:  "smooth_bursty",
	LeakyQueue:    "leaky_queue",
	Concurrency:   "concurrency",

	SmoothWarmingUp: "smooth_warming_up",
}

// algorithmParams are the parameters that an algorithm has besides its rate and charge_denied.
var algorithmParams = map[Algorithm][]string{
	FixedWindow:   {"align", "time_zone"},
	Funnel:        {"burst", "engine"},
	TokenBucket:   {"burst", "initial", "refill", "engine"},
	SlidingWindow: {"segments", "segment_cap", "oldest"},
	SlidingLog:    {"max_log_entries"},
	SmoothBursty:  {"burst_seconds", "initial", "max_wait", "max_cost"},
	LeakyQueue:    {"burst", "max_wait"},
	Concurrency:   {"lease", "max_log_entries"},

	SmoothWarmingUp: {"warm_up", "cold_factor", "max_wait", "max_cost"},
}

var (
	chargeDeniedNames = map[ChargeDenied]string{ChargeNone: "none", ChargeRemaining: "remaining", ChargeFull: "full"}
	oldestNames       = map[Oldest]string{OldestProportional: "proportional", OldestFull: "full", OldestNone: "none"}
	initialNames      = map[Initial]string{InitialFull: "full", InitialEmpty: "empty"}
	refillNames       = map[Refill]string{RefillGreedy: "greedy", RefillInterval: "interval"}
	engineNames       = map[Engine]string{EngineWeir: "weir", EngineRedisCell: "redis_cell"}
	alignNames        = map[Align]string{AlignEpoch: "epoch", AlignFirstHit: "first_hit", AlignCalendar: "calendar"}
)

// String is the algorithm's name in a rule file.
func (a Algorithm) String() string { return algorithmNames[a] }

// AlgorithmNames are the names of all algorithms, in the order of their constants.
func AlgorithmNames() []string { return names(algorithmNames) }

// Parameters are the names of the parameters that the algorithm takes besides its rate.
func (a Algorithm) Parameters() []string {
	return append(slices.Clone(algorithmParams[a]), "charge_denied")
}

// Has says whether the algorithm takes the named parameter.
func (a Algorithm) Has(param string) bool { return slices.Contains(a.Parameters(), param) }

// String is the name in a rule file.
func (c ChargeDenied) String() string { return chargeDeniedNames[c] }

// String is the name in a rule file.
func (o Oldest) String() string { return oldestNames[o] }

// String is the name in a rule file.
func (a Align) String() string { return alignNames[a] }

// String is the name in a rule file.
func (i Initial) String() string { return initialNames[i] }

// String is the name in a rule file.
func (r Refill) String() string { return refillNames[r] }

// String is the name in a rule file.
func (e Engine) String() string { return engineNames[e] }

// ParseEngine is the value of that name.
func ParseEngine(name string) (Engine, error) { return parse(engineNames, name) }

// ParseInitial is the value of that name.
func ParseInitial(name string) (Initial, error) { return parse(initialNames, name) }

// ParseRefill is the value of that name.
func ParseRefill(name string) (Refill, error) { return parse(refillNames, name) }

// ParseAlgorithm is the algorithm of that name.
func ParseAlgorithm(name string) (Algorithm, error) { return parse(algorithmNames, name) }

// ParseChargeDenied is the value of that name.
func ParseChargeDenied(name string) (ChargeDenied, error) { return parse(chargeDeniedNames, name) }

// ParseOldest is the value of that name.
func ParseOldest(name string) (Oldest, error) { return parse(oldestNames, name) }

// ParseAlign is the value of that name.
func ParseAlign(name string) (Align, error) { return parse(alignNames, name) }

func parse[T ~uint8](known map[T]string, name string) (T, error) {
	for v, n := range known {
		if n == name {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%q is not known: use one of %s", name, strings.Join(names(known), ", "))
}

// names are the map's names in the order of their values.
func names[T ~uint8](known map[T]string) []string {
	keys := make([]T, 0, len(known))
	for v := range known {
		keys = append(keys, v)
	}
	slices.Sort(keys)
	out := make([]string, len(keys))
	for i, v := range keys {
		out[i] = known[v]
	}
	return out
}
