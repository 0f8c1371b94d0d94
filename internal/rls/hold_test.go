package rls

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const queueRules = `
domain: shop
descriptors:
  - {key: print, rate_limit: {algorithm: leaky_queue, requests_per_unit: 5, unit: second, burst: 3}}
  - {key: flight, rate_limit: {algorithm: concurrency, requests_per_unit: 2}}
`

// queueing returns a service whose store uses synctest's clock.
func queueing(t *testing.T, change ...func(*options)) *Service {
	t.Helper()
	s, _ := service(t, queueRules, append(change, func(o *options) { o.Store = memory(t, nil) })...)
	return s
}

// JSON requests whose responses are delayed do not keep others from being decoded.
func TestDelayedRequestsDoNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queueing(t)
		const body = `{"domain":"shop","descriptors":[{"entries":[{"key":"print","value":"\u0070{[\"{["}]}]}`
		var decided atomic.Int64
		for range 4 { // more than can be decoded at once
			go func() {
				if _, isOver, err := s.DecideJSON(t.Context(), strings.NewReader(body), nil); isOver || err != nil {
					t.Errorf("%t, %v", isOver, err)
				}
				decided.Add(1)
			}()
			synctest.Wait()
		}
		if n := s.o.Decider.Delayed().Now; decided.Load() != 1 || n != 3 {
			t.Errorf("%d are decided and %d delayed, want 1 and 3", decided.Load(), n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if decided.Load() != 4 {
			t.Errorf("%d are decided", decided.Load())
		}
	})
}

// Reading JSON stops at the first descriptor or object beyond the maximum.
func TestJSONIsCountedWhileItIsRead(t *testing.T) {
	s, _ := service(t, queueRules)
	for want, body := range map[string]string{
		"descriptors: must be at most 128, got more":         `{"descriptors":[` + strings.Repeat("{},", 200<<10),
		"the body must have at most 16384 objects, got more": `{"descriptors":[{"entries":[` + strings.Repeat("{},", 200<<10),
	} {
		r := strings.NewReader(body)
		_, _, err := s.DecideJSON(t.Context(), r, nil)
		if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if read := len(body) - r.Len(); read > len(body)/2 {
			t.Errorf("%d of %d bytes were read before: %s", read, len(body), want)
		}
	}
}

// A bounded number of large requests is decided at once. A request that fails or panics ends its turn.
func TestLargeRequestsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queueing(t)
		var many []*commonpb.RateLimitDescriptor
		for range maxSmallDescriptors + 1 {
			many = append(many, descriptor("nothing=p"))
		}
		for range maxLarge {
			s.large <- struct{}{}
		}
		var done atomic.Bool
		go func() {
			ask(t, s, request(many...))
			done.Store(true)
		}()
		ask(t, s, request(many[1:]...)) // waits for nobody
		synctest.Wait()
		if done.Load() {
			t.Error("more large requests are decided at once than may be")
		}
		<-s.large
		synctest.Wait()
		if !done.Load() || len(s.large) != maxLarge-1 {
			t.Errorf("after a turn is free: %t, %d turns are taken", done.Load(), len(s.large))
		}
		if _, err := send(t.Context(), s, request(append(many, descriptor())...)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a request without entries: %v", err)
		}
		if len(s.large) != maxLarge-1 {
			t.Errorf("after an error %d turns are taken", len(s.large))
		}
	})
}

// If encoding its response panics, a delayed request counts neither as delayed nor as in flight.
func TestPanicWhileTheAnswerIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queueing(t)
		wire, err := proto.Marshal(request(descriptor("print=p"), descriptor("flight=f")))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second one has to wait
			c := s.get()
			c.message, c.entries = mem.BufferSlice{mem.SliceBuffer(wire)}, maxSmallEntries+1
			c.leave = func() { panic("boom") } // once the answer is written, since it is large
			func() {
				defer func() {
					if recover() == nil {
						t.Error("writing the answer did not panic")
					}
				}()
				_, err := s.shouldRateLimit(t.Context(), c)
				t.Errorf("answered, %v", err)
			}()
		}
		if n := s.o.Decider.Delayed().Now; n != 0 {
			t.Errorf("%d requests are still delayed", n)
		}
		if left := ask(t, s, request(descriptor("flight=f"))).GetStatuses()[0].GetLimitRemaining(); left != 1 {
			t.Errorf("%d of 2 requests in flight are left beside this one, want 1", left)
		}
	})
}
