package rlqs

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A client that never reads what it is sent, and reports other buckets all the time, does not fill the memory: its
// stream ends.
func TestStreamThatNeverReads(t *testing.T) {
	s := serve(t, answers{})
	st := s.open(t)
	long := strings.Repeat("x", MaxIDBytes/2)
	for i := 0; s.Stats().Streams > 0 || i == 0; i++ {
		m := report("shop")
		for j := range 500 {
			id := usage(0, 0, "k", fmt.Sprintf("%d %d %s", i, j, long))
			for range 1 + idleReports { // after that Weir abandons it
				m.BucketQuotaUsages = append(m.BucketQuotaUsages, id)
			}
		}
		if st.Send(m) != nil {
			break
		}
		until(t, "the report is read", func() bool { return s.Stats().Reports > uint64(i) || s.Stats().Unread > 0 })
	}
	if got := s.Stats(); got.Streams != 0 || got.Unread != 1 {
		t.Errorf("%+v", got)
	}
	for {
		if _, err := st.Recv(); err != nil {
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("the stream ends by %v", err)
			}
			return
		}
	}
}
