package adminapi

import "time"

// History is the answer of GET /history: counts over time. All lists have the same length, oldest first; the last one
// ends at Until.
type History struct {
	// Until is the end of the last point, Since when counting began: points before it are 0.
	Until time.Time `json:"until"`
	Since time.Time `json:"since"`
	// Step is the length of a point in seconds. Points begin at multiples of it since 1970, so the last one may have begun
	// less than a step before Until.
	Step int64 `json:"step_seconds"`
	// Tick is the number of the last sample: one every Every seconds since 1970.
	Tick  int64 `json:"tick"`
	Every int64 `json:"every_seconds"`
	// Total is of requests.
	Total CountsOverTime `json:"total"`
	// Other is of all limits without a series of their own.
	Other  CountsOverTime  `json:"other"`
	Limits []LimitOverTime `json:"limits"`
}

// CountsOverTime are counts of one series.
type CountsOverTime struct {
	Allowed []uint64 `json:"allowed"`
	Denied  []uint64 `json:"denied"` // also those that shadow or quota mode let pass
	Near    []uint64 `json:"near"`   // the part of Allowed that was near the limit
}

// LimitOverTime is the series of one limit. Limit is its name, or its number in a rule with several, as in metrics.
type LimitOverTime struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	Limit  string `json:"limit"`
	CountsOverTime
}

// Sample is the event "counts" of GET /events: what was counted between the last two samples.
type Sample struct {
	Tick  int64     `json:"tick"`
	Until time.Time `json:"until"`
	Total Counts    `json:"total"`
	Other Counts    `json:"other"`
	// Limits are those of which something was counted.
	Limits []LimitCounts `json:"limits"`
}

// Counts are counts of one series in one sample.
type Counts struct {
	Allowed uint64 `json:"allowed"`
	Denied  uint64 `json:"denied"`
	Near    uint64 `json:"near"`
}

// LimitCounts are the counts of one limit.
type LimitCounts struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	Limit  string `json:"limit"`
	Counts
}
