package rlqs

import (
	"sync"

	"github.com/weir-ratelimit/weir/pkg/reload"
)

// outbox has what is to be sent on a stream: for each bucket the assignments that came last, so that a slow stream
// keeps no more than one moment's, of so many buckets at most. It is safe for concurrent use.
type outbox struct {
	full    chan struct{} // has one element if something is pending
	tooMany chan struct{} // has one element once something was dropped
	most    int           // buckets

	mu      sync.Mutex
	pending map[BucketID][]Assignment
	order   []BucketID // in which the buckets came
}

var _ Sender = (*outbox)(nil)

func newOutbox(most int) *outbox {
	return &outbox{
		full: make(chan struct{}, 1), tooMany: make(chan struct{}, 1), most: most, pending: map[BucketID][]Assignment{},
	}
}

// Send implements Sender.
func (m *outbox) Send(all []Assignment) {
	if len(all) == 0 {
		return
	}
	m.mu.Lock()
	isNew := make(map[BucketID]bool, len(all)) // those of which this call has sent something
	for _, a := range all {
		of, ok := m.pending[a.ID]
		if !ok && len(m.order) >= m.most {
			reload.Hint(m.tooMany)
			continue
		}
		if !ok {
			m.order = append(m.order, a.ID)
		}
		if !isNew[a.ID] {
			isNew[a.ID], of = true, nil
		}
		m.pending[a.ID] = append(of, a)
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
		all = append(all, m.pending[id]...)
	}
	clear(m.pending)
	m.order = m.order[:0]
	return all
}
