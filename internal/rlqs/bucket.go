// Package rlqs assigns parts of limits to Envoys that decide by themselves (Rate Limit Quota Service): an Envoy reports
// what its buckets let pass, and gets a token bucket for each, whose tokens were charged to the limit's counter before.
package rlqs

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Usage is what an Envoy reports of one bucket since its last report.
type Usage struct {
	// ID names the bucket: see BucketID.
	ID BucketID
	// Allowed and Denied count requests.
	Allowed, Denied uint64
	// Elapsed is the time since the last report of the bucket; 0 in a bucket's first.
	Elapsed time.Duration
}

// BucketID is the text of a bucket's entries, sorted by key, so that equal maps have equal IDs. Only a Stream's own
// messages compare it.
type BucketID string

// Strategy says what an Envoy shall do with the requests of a bucket.
type Strategy uint8

// The strategies.
const (
	AllowAll Strategy = iota
	DenyAll
	TokenBucket // lets requests pass that find a token
	Abandon     // has Envoy forget the bucket until its next request
)

// Assignment is one bucket's part of a response.
type Assignment struct {
	ID       BucketID
	Strategy Strategy
	// MaxTokens, PerFill and Fill are those of TokenBucket: at most so many tokens, and so many come in each Fill, which
	// is whole seconds.
	MaxTokens, PerFill uint32
	Fill               time.Duration
	// TTL is how long the assignment holds, in whole seconds; nothing of Abandon.
	TTL time.Duration
}

// Target is what a bucket counts, by the rules of now.
type Target struct {
	// Hits are the limits, with N unset, in the order of the rules. None: nothing limits the bucket. Those in shadow mode
	// let all requests pass, and are charged what was reported.
	Hits []limiter.Hit
	// Limits are those of Hits: by them requests are counted, and they say what holds while the store does not answer.
	Limits []*descriptors.Limit
	// Refused says why the bucket gets no assignment; empty if it gets one.
	Refused string
}
