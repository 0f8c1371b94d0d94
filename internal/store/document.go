package store

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// documentRetry is the interval of hints while Redis cannot be reached.
const documentRetry = 500 * time.Millisecond

// connectPause is the pause between two attempts to get a connection.
const connectPause = 10 * time.Millisecond

// DocumentOptions are a document's name and times.
type DocumentOptions struct {
	// Name follows the key prefix. The document's key is also the channel where its changes are published.
	Name string
	// Timeout bounds each round trip. It may be far longer than for requests.
	Timeout time.Duration
	// Poll is how long after a look there is a hint to look again, although nothing was published; 0 is never.
	Poll time.Duration
}

// Document is a versioned document in Redis that several processes read and change, such as the boosts or the published
// rules; its owner decides how it is stored. The Document has what all of them need: commands on the store's own
// connections with a timeout of their own, hints when the document changes, and whether Redis can be reached for it. It
// is safe for concurrent use.
type Document struct {
	redis *Redis
	key   string
	o     DocumentOptions

	mu     sync.Mutex
	away   error // why Redis could not be reached at the last look
	looked time.Time
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
	d.away, d.looked = away, time.Now()
}

// Away returns why Redis could not be reached at the last look.
func (d *Document) Away() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.away
}

// Watch sends to hints when it is time to look: after a change was published, after a connection was made that may have
// missed one, at intervals while Redis cannot be reached, and after DocumentOptions.Poll. It returns when ctx is done.
func (d *Document) Watch(ctx context.Context, hints chan<- struct{}) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		panics.Restart(ctx.Done(), "subscription to a document", func() { d.redis.listen(ctx, d.key, hints) })
	}()
	tick := time.NewTicker(documentRetry)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			if d.isDue() {
				reload.Hint(hints)
			}
		}
	}
}

// isDue reports whether it is time to look although nothing was published.
func (d *Document) isDue() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.away != nil || d.o.Poll > 0 && time.Since(d.looked) >= d.o.Poll
}

// subscription is the one connection on which a process hears that documents changed. It exists while somebody listens.
type subscription struct {
	mu        sync.Mutex
	pubsub    *redis.PubSub              // nil while nobody listens
	ended     chan struct{}              // is closed when nothing reads from pubsub any more
	listeners map[chan<- struct{}]string // the channel that each hears
}

// listen sends to changed when something is published on the channel, and when a connection was made that may have
// missed it. It returns when ctx is done. All callers share one connection.
func (r *Redis) listen(ctx context.Context, channel string, changed chan<- struct{}) {
	r.subscription.add(ctx, r.Client, channel, changed)
	<-ctx.Done()
	r.subscription.remove(changed)
}

func (s *subscription) add(ctx context.Context, c redis.UniversalClient, channel string, changed chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pubsub == nil {
		s.listeners = map[chan<- struct{}]string{}
		s.pubsub, s.ended = c.Subscribe(ctx, channel), make(chan struct{})
		messages, ended := s.pubsub.ChannelWithSubscriptions(), s.ended
		go func() {
			defer close(ended)
			panics.Restart(ctx.Done(), "messages of a subscription", func() { s.forward(messages) })
		}()
	} else {
		_ = s.pubsub.Subscribe(ctx, channel) // without a connection yet, go-redis subscribes when it has made one
	}
	s.listeners[changed] = channel
}

func (s *subscription) remove(changed chan<- struct{}) {
	s.mu.Lock()
	delete(s.listeners, changed)
	pubsub, ended, last := s.pubsub, s.ended, len(s.listeners) == 0
	if last {
		s.pubsub = nil
	}
	s.mu.Unlock()
	if last {
		_ = pubsub.Close() // nothing was written
		<-ended
	}
}

// forward passes on what is heard until the connection is closed.
func (s *subscription) forward(messages <-chan any) {
	for message := range messages {
		channel := ""
		switch m := message.(type) {
		case *redis.Message:
			channel = m.Channel
		case *redis.Subscription: // made or made again
			channel = m.Channel
		}
		s.hintAll(channel)
	}
}

// hintAll sends to all who listen to a channel.
func (s *subscription) hintAll(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l, hears := range s.listeners {
		if hears == channel {
			reload.Hint(l)
		}
	}
}
