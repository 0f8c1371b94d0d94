package rlqs

import (
	"slices"
	"sync"

	"github.com/weir-ratelimit/weir/pkg/reload"
)

// outbox has what is to be sent on a stream: the last assignment of each bucket, so that a slow stream keeps no more
// than one moment's. It is safe for concurrent use.
type outbox struct {
	full chan struct{} // has one element if something is pending

	mu        sync.Mutex
	pending   map[BucketID]Assignment
	order     []BucketID // in which the buckets came
	abandoned int        // pending buckets that are abandoned
}

var _ Sender = (*outbox)(nil)

func newOutbox() *outbox {
	return &outbox{full: make(chan struct{}, 1), pending: map[BucketID]Assignment{}}
}

// Send implements Sender. If the client does not read, buckets beyond maxBuckets are not abandoned: the Envoy reports
// them again.
func (m *outbox) Send(all []Assignment) {
	if len(all) == 0 {
		return
	}
	m.mu.Lock()
	for _, a := range all {
		of, ok := m.pending[a.ID]
		isAbandoned := a.Strategy == Abandon
		switch wasAbandoned := ok && of.Strategy == Abandon; {
		case isAbandoned && !wasAbandoned && m.abandoned >= maxBuckets:
			if delete(m.pending, a.ID); ok {
				m.order = slices.DeleteFunc(m.order, func(id BucketID) bool { return id == a.ID })
			}
			continue
		case isAbandoned && !wasAbandoned:
			m.abandoned++
		case !isAbandoned && wasAbandoned:
			m.abandoned--
		}
		if !ok {
			m.order = append(m.order, a.ID)
		}
		m.pending[a.ID] = a
	}
	m.mu.Unlock()
	reload.Hint(m.full)
}

// take empties the outbox.
func (m *outbox) take() []Assignment {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Assignment, 0, len(m.order))
	for _, id := range m.order {
		all = append(all, m.pending[id])
	}
	clear(m.pending)
	m.order, m.abandoned = m.order[:0], 0
	return all
}
