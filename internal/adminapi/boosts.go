package adminapi

import "time"

// BoostRequest asks for a boost.
type BoostRequest struct {
	Domain string `json:"domain"`
	// Rule is the path of a rule, all of whose counters are boosted. Descriptor, as descriptors.ParseEntries reads it, is
	// one whose counters alone are. Exactly one of the two is given.
	Rule       string  `json:"rule,omitempty"`
	Descriptor string  `json:"descriptor,omitempty"`
	Factor     float64 `json:"factor"`
	For        string  `json:"for"` // a duration, as Go writes it: 1h30m
	Reason     string  `json:"reason"`
	Author     string  `json:"author"`
}

// Boost is a factor on the limits of a rule, or on single counters of it, until a time.
type Boost struct {
	ID     string `json:"id"`
	Domain string `json:"domain"`
	Rule   string `json:"rule"` // its path
	// Keys are of the counters; without any it is the whole rule.
	Keys      []string  `json:"keys,omitempty"`
	Factor    float64   `json:"factor"`
	Reason    string    `json:"reason"`
	Author    string    `json:"author"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
}

// BoostStatus is a boost, and its effect in this process.
type BoostStatus struct {
	Boost

	// InForce says that a limit of the live rules is boosted by it.
	InForce bool `json:"in_force"`
	// Problem is why it is not in force, or not for all limits.
	Problem string `json:"problem,omitempty"`
	// Limits are those of the rule.
	Limits []ScaledLimit `json:"limits"`
}

// ScaledLimit is a limit under a boost.
type ScaledLimit struct {
	Limit           string `json:"limit,omitempty"` // its name
	Algorithm       string `json:"algorithm"`
	RequestsPerUnit int64  `json:"requests_per_unit"` // of the rule
	Boosted         int64  `json:"boosted"`           // instead of it
	Capacity        int64  `json:"boosted_capacity"`  // most at once
	Window          string `json:"window"`
}

// BoostList is the answer of GET /boosts.
type BoostList struct {
	Boosts []BoostStatus `json:"boosts"`
	// Error is why the last read from Redis failed: there may be other boosts.
	Error string `json:"error,omitempty"`
	// Hashed says that the values of keys are shown as hashes, since the client may not see them.
	Hashed bool `json:"values_hashed,omitempty"`
}
