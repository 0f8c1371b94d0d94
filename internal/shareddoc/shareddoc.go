// Package shareddoc is a versioned document in Redis that several processes read and change, such as the boosts and the
// published rules. What it is and how it is stored is its owner's; here is what all documents have in common: calls on
// the store's own connections with a time of their own, hints when it changes, and whether Redis can be reached for it.
package shareddoc

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/store"
)

// retry is how often there is a hint while Redis cannot be reached.
const retry = 500 * time.Millisecond

// connectPause is between two tries to get a connection.
const connectPause = 10 * time.Millisecond

// Options are what a document is called, and its times.
type Options struct {
	// Name follows the key prefix. The document's key is also the channel where its changes are published.
	Name string
	// Timeout bounds each round trip. It may be far above that of requests.
	Timeout time.Duration
	// Poll is how long after a look there is a hint to look again, although nothing was published; 0 is never.
	Poll time.Duration
}

// Doc is a document. It is safe for concurrent use.
type Doc struct {
	redis *store.Redis
	key   string
	o     Options

	mu     sync.Mutex
	away   error // why Redis could not be reached at the last look
	looked time.Time
}

// New makes a document on the connections of a Redis. It does not connect.
func New(r *store.Redis, o Options) *Doc { return &Doc{redis: r, key: r.Prefix() + o.Name, o: o} }

// Key returns the document's key.
func (d *Doc) Key() string { return d.key }

// Server names the server, without user and password.
func (d *Doc) Server() string { return d.redis.String() }

// Do calls f with a client for commands on the key that may each take Options.Timeout, and returns its error. It calls f
// again where nothing was sent, since the connections are made in the time that requests have: until a connection is
// there or Options.Timeout is over. In a cluster that has moved the key, it calls f a second time, with the client of the
// whole cluster and its timeouts.
func (d *Doc) Do(ctx context.Context, f func(c redis.UniversalClient) error) error {
	for end := time.Now().Add(d.o.Timeout); ; time.Sleep(connectPause) {
		err := d.try(ctx, f)
		if !store.ConnectTimedOut(err) || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

func (d *Doc) try(ctx context.Context, f func(c redis.UniversalClient) error) error {
	switch c := d.redis.Client.(type) {
	case *redis.Client:
		return f(c.WithTimeout(d.o.Timeout))
	case *redis.ClusterClient:
		master, err := c.MasterForKey(ctx, d.key)
		if err != nil {
			return err
		}
		err = f(master.WithTimeout(d.o.Timeout))
		if redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") {
			return f(c)
		}
		if err != nil {
			c.ReloadState(ctx) // another master may have taken over: the next call knows
		}
		return err
	default:
		return f(c)
	}
}

// Looked notes the result of a look at the document: away is why Redis could not be reached, nil if it could.
func (d *Doc) Looked(away error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.away, d.looked = away, time.Now()
}

// Away returns why Redis could not be reached at the last look.
func (d *Doc) Away() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.away
}

// Watch sends to hints when it is time to look: after a change was published, after a connection was made that may have
// missed one, at intervals while Redis cannot be reached, and after Options.Poll. It returns when ctx is done.
func (d *Doc) Watch(ctx context.Context, hints chan<- struct{}) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.redis.Hints(ctx, d.key, hints)
	}()
	tick := time.NewTicker(retry)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			if d.isDue() {
				store.Hint(hints)
			}
		}
	}
}

// isDue reports whether it is time to look although nothing was published.
func (d *Doc) isDue() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.away != nil || d.o.Poll > 0 && time.Since(d.looked) >= d.o.Poll
}
