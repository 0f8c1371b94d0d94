package store

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// documentRetry is the interval of hints while Redis cannot be reached.
const documentRetry = 500 * time.Millisecond

// connectPause is the pause between two attempts to get a connection.
const connectPause = 10 * time.Millisecond

// DocumentOptions are a document's name and timeout.
type DocumentOptions struct {
	// Name follows the key prefix. The document's key is also the channel where its changes are published.
	Name string
	// Timeout bounds each round trip. It may be far longer than for requests.
	Timeout time.Duration
}

// Document is a versioned document in Redis that several processes read and change, such as the published rules; its
// owner decides how it is stored. The Document has commands on the store's own connections with a timeout of their own,
// hints when the document changes, and whether Redis can be reached for it. It is safe for concurrent use.
type Document struct {
	redis *Redis
	key   string
	o     DocumentOptions

	mu   sync.Mutex
	away error // why Redis could not be reached at the last look
}

// NewDocument returns a document on the connections of a Redis. It does not connect.
func NewDocument(r *Redis, o DocumentOptions) *Document {
	return &Document{redis: r, key: r.Prefix() + o.Name, o: o}
}

// Key returns the document's key.
func (d *Document) Key() string { return d.key }

// Server names the server, without user and password.
func (d *Document) Server() string { return d.redis.String() }

// Do calls f with a client for commands on the key that may each take DocumentOptions.Timeout, and returns its error.
// It calls f again where nothing was sent, since connections are made in the time that requests have: until a
// connection is there or DocumentOptions.Timeout is over. In a cluster that has moved the key, it calls f a second
// time, with the client of the whole cluster and its timeouts.
func (d *Document) Do(ctx context.Context, f func(c redis.UniversalClient) error) error {
	waiting, cancel := context.WithTimeout(ctx, d.o.Timeout)
	defer cancel()
	for {
		err := d.try(ctx, f)
		if !connectTimedOut(err) || limiter.Sleep(waiting, connectPause) != nil {
			return err
		}
	}
}

func (d *Document) try(ctx context.Context, f func(c redis.UniversalClient) error) error {
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
func (d *Document) Looked(away error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.away = away
}

// Away returns why Redis could not be reached at the last look.
func (d *Document) Away() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.away
}

// Watch sends to hints when it is time to read the document: after a change was published, after a connection was made,
// which may have missed a change, and at intervals while Redis cannot be reached. It returns when ctx is done.
func (d *Document) Watch(ctx context.Context, hints chan<- struct{}) {
	subscription := d.redis.Client.Subscribe(ctx, d.key)
	heard := subscription.ChannelWithSubscriptions()
	defer func() {
		_ = subscription.Close() // nothing was written
		for range heard {        // until go-redis no longer reads from the connection
		}
	}()
	tick := time.NewTicker(documentRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-heard:
			reload.Hint(hints)
		case <-tick.C:
			if d.Away() != nil {
				reload.Hint(hints)
			}
		}
	}
}
