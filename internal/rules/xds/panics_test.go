package xds

import (
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// exploding is a stream whose receiver panics.
type exploding struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

func (exploding) RecvMsg(any) error { panic("boom") }

// An answer that takes long to be judged does not keep a process from its end.
func TestCloseWaitsForNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began := New(Options{}), time.Now()
		s.cancel, s.ended = func() {}, make(chan struct{}) // it never ends
		if err := s.Close(); err != nil || time.Since(began) > time.Second {
			t.Errorf("closed after %s: %v", time.Since(began), err)
		}
	})
}

// A receiver that panics ends its stream with an error, so that another one is opened.
func TestReceiverPanics(t *testing.T) {
	caught := make(chan struct{})
	defer panics.Handle(func(string, any, []byte) { close(caught) })()
	answers, ended := (&follower{ads: exploding{}}).receive(t.Context())
	if err := (&follower{Source: &Source{}}).answerAll(t.Context(), answers, ended); err == nil {
		t.Error("the stream ended without an error")
	}
	<-caught // without a handler the panic would end the process
}
