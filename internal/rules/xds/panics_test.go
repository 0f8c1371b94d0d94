package xds

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// exploding is a stream whose receiver panics.
type exploding struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

func (exploding) Recv() (*discoveryv3.DiscoveryResponse, error) { panic("boom") }

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
