package guard

import (
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// LeasesOptions are the parts of Leases.
type LeasesOptions struct {
	// Store decides, and charges permits.
	Store limiter.Store
	// Shard says which server decides a hit: permits of several servers never share a call, so that one that fails costs
	// the permits of no other. It is not called for what leases decide. Nil: there is only one.
	Shard func(h *limiter.Hit) Shard
	// Answered says whether an error of Store is an answer, so that nothing was charged: then permits that shared a call
	// with those of another key are exchanged again, each key by itself. Nil: no error is.
	Answered func(err error) bool
	// Timeout is the longest that a request on a store may take, also one that first waits for permits. The store is
	// named as routes name it. Nil: Store and ctx bound it.
	Timeout func(store string) time.Duration
}

// Shard is a server that decides hits.
type Shard struct {
	// Store is the name that routes have for it.
	Store string
	// Address is that of a master of a cluster; empty for what is no cluster, and while that is not known.
	Address string
}
