package adminapi

import "time"

// KeyState is the answer of GET /keys/get: the counters of one descriptor.
type KeyState struct {
	Domain     string     `json:"domain"`
	Descriptor string     `json:"descriptor"`
	Rule       string     `json:"rule"`   // its path
	Source     string     `json:"source"` // file:line
	Mode       string     `json:"mode"`   // enforce, shadow or quota
	Unlimited  bool       `json:"unlimited,omitempty"`
	Limits     []KeyLimit `json:"limits"`
}

// KeyLimit is one counter and its limit, as it is in force: with a boost, if there is one.
type KeyLimit struct {
	Limit           string `json:"limit,omitempty"` // its name
	Algorithm       string `json:"algorithm"`
	Key             string `json:"key"`             // of the counter
	Store           string `json:"store,omitempty"` // that the limit names
	RequestsPerUnit int64  `json:"requests_per_unit"`
	Window          string `json:"window"`
	Capacity        int64  `json:"capacity"` // most at once

	// One of these is set: what the algorithm counts, in hits.
	Count  *int64 `json:"count,omitempty"`  // of a window
	Level  *int64 `json:"level,omitempty"`  // of a funnel
	Tokens *int64 `json:"tokens,omitempty"` // of a bucket
	Stored *int64 `json:"stored,omitempty"` // unused permits
	Queued *int64 `json:"queued,omitempty"` // of a queue
	InUse  *int64 `json:"in_use,omitempty"` // requests in flight

	// Remaining is how many requests of cost 1 would be admitted now.
	Remaining int64 `json:"remaining"`
	// RetryAfter is the time until one more is admitted: 0 for now, nil (null in JSON) if no wait helps.
	RetryAfter *float64 `json:"retry_after_seconds"`
	// ResetAfter is the time until the limit is fully available again, of a fixed_window until the window ends, and
	// ResetAt that moment by the clock of the process.
	ResetAfter float64   `json:"reset_after_seconds"`
	ResetAt    time.Time `json:"reset_at"`

	Boost *KeyBoost `json:"boost,omitempty"`
	// KnownDenial is the cached denial by which this process denies a request of cost 1 without asking the store.
	KnownDenial *KeyDenial `json:"known_denial,omitempty"`
	// KeyLease is of permits that this sidecar has taken ahead: they count as used.
	Lease *KeyLease `json:"lease,omitempty"`
}

// KeyBoost is the boost that is in force.
type KeyBoost struct {
	ID        string    `json:"id"`
	Factor    float64   `json:"factor"`
	Unboosted int64     `json:"requests_per_unit"` // as the rule has it
	Reason    string    `json:"reason"`
	Author    string    `json:"author"`
	ExpiresAt time.Time `json:"expires_at"`
}

// KeyDenial is a cached denial. Ends is nil (null in JSON) if it does not end.
type KeyDenial struct {
	Ends *float64 `json:"ends_in_seconds"`
}

// KeyLease is permits on lease.
type KeyLease struct {
	Permits int64 `json:"permits"`
}

// ResetRequest names the counters to reset: those of a descriptor, or one by its key. Exactly one of the two is given.
type ResetRequest struct {
	Domain     string `json:"domain,omitempty"`
	Descriptor string `json:"descriptor,omitempty"`
	Key        string `json:"key,omitempty"` // as GET /keys/get shows it, or as weir keys does
}

// ResetResult is the answer of POST /keys/reset.
type ResetResult struct {
	Domain   string         `json:"domain"`
	Rule     string         `json:"rule,omitempty"` // empty for a counter by its key
	Counters []ResetCounter `json:"counters"`
	// Tried are the keys of all counters that were to be reset.
	Tried []string `json:"-"`
}

// ResetCounter is one that was reset.
type ResetCounter struct {
	Key     string `json:"key"`
	Existed bool   `json:"existed"` // false: its limit was fully available
}
