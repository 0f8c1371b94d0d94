package store

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// subscription is the one connection on which a process hears that documents changed. It exists while somebody listens.
type subscription struct {
	mu        sync.Mutex
	pubsub    *redis.PubSub // nil while nobody listens
	ended     chan struct{} // is closed when nothing reads from pubsub any more
	listeners map[string][]chan<- struct{}
}

// hint sends to a channel unless there is something in it already.
func hint(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// listen sends to changed when something is published on the channel, and when a connection was made that may have
// missed it. It returns when ctx is done. All callers share one connection.
func (r *Redis) listen(ctx context.Context, channel string, changed chan<- struct{}) {
	r.subscription.add(ctx, r.Client, channel, changed)
	<-ctx.Done()
	r.subscription.remove(channel, changed)
}

func (s *subscription) add(ctx context.Context, c redis.UniversalClient, channel string, changed chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pubsub == nil {
		s.listeners = map[string][]chan<- struct{}{}
		s.pubsub, s.ended = c.Subscribe(ctx, channel), make(chan struct{})
		go s.forward(s.pubsub.ChannelWithSubscriptions(), s.ended)
	} else {
		_ = s.pubsub.Subscribe(ctx, channel) // without a connection yet, go-redis subscribes when it has made one
	}
	s.listeners[channel] = append(s.listeners[channel], changed)
}

func (s *subscription) remove(channel string, changed chan<- struct{}) {
	s.mu.Lock()
	s.listeners[channel] = slices.DeleteFunc(s.listeners[channel], func(l chan<- struct{}) bool { return l == changed })
	if len(s.listeners[channel]) == 0 {
		delete(s.listeners, channel)
	}
	pubsub, ended := s.pubsub, s.ended
	last := len(s.listeners) == 0
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
func (s *subscription) forward(messages <-chan any, ended chan<- struct{}) {
	defer close(ended)
	for message := range messages {
		channel := ""
		switch m := message.(type) {
		case *redis.Message:
			channel = m.Channel
		case *redis.Subscription: // made or made again
			channel = m.Channel
		}
		s.mu.Lock()
		for _, l := range s.listeners[channel] {
			hint(l)
		}
		s.mu.Unlock()
	}
}
