// Package rlqs assigns parts of limits to Envoys that decide without calls (Rate Limit Quota Service). An Envoy reports
// its buckets' requests, and gets a token bucket for each, with tokens that Weir has charged in advance.
package rlqs

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Usage is an Envoy's report on one bucket since the previous report.
type Usage struct {
	// ID identifies the bucket.
	ID BucketID
	// Allowed and Denied count requests.
	Allowed, Denied uint64
	// Elapsed is the time since the bucket's previous report; 0 in its first.
	Elapsed time.Duration
}

// BucketID is the text of a bucket's entries, sorted by key, so that equal maps have equal IDs within a Stream.
type BucketID string

// Strategy is the treatment of a bucket's requests by an Envoy.
type Strategy uint8

// The strategies.
const (
	AllowAll Strategy = iota
	DenyAll
	TokenBucket // admits requests while the bucket has tokens
	Abandon     // makes Envoy drop the bucket until its next request
)

// Assignment is the assignment for one bucket in a response.
type Assignment struct {
	ID       BucketID
	Strategy Strategy
	// MaxTokens, PerFill and Fill are set for TokenBucket: the bucket has at most MaxTokens, and gets PerFill tokens per
	// Fill, which is in whole seconds.
	MaxTokens, PerFill uint32
	Fill               time.Duration
	// TTL is the lifetime of the assignment, in whole seconds; unused for Abandon.
	TTL time.Duration
}

// Target has the limits of a bucket by the current rules.
type Target struct {
	// Hits are the hits for the limits, with N unset, in the order of the rules; empty if the bucket has no limit. Limits
	// in shadow mode admit all requests, and reported requests are charged to them.
	Hits []limiter.Hit
	// Limits are the limits of Hits.
	Limits []*descriptors.Limit
	// Refused is the reason why the bucket gets no assignment, or "".
	Refused string
}
