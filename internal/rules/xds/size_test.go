package xds

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-ratelimit/weir/internal/test/xdstest"
)

// An answer of few bytes that is decoded to very much is refused before that.
func TestAnswersOfManySmallRules(t *testing.T) {
	answer := func(rules int) *discoveryv3.DiscoveryResponse {
		d := &ratelimitv3.RateLimitDescriptor{Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{RequestsPerUnit: 1}}
		above := xdstest.Node("above", "")
		for range rules {
			above.Descriptors = append(above.Descriptors, d)
		}
		text, err := proto.Marshal(xdstest.Domain("d", above))
		if err != nil {
			t.Fatal(err)
		}
		return &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Resources: []*anypb.Any{{TypeUrl: typeURL, Value: text}}}
	}
	if hasTooMany(answer(maxMessages/2 - 1)) { // with the domain and the descriptor above
		t.Errorf("%d messages are too many", maxMessages)
	}
	many := answer(maxMessages / 2)
	f := &follower{Source: New(Options{Server: "gateway:18001", Log: slog.New(slog.DiscardHandler)})}
	began := time.Now()
	if why := f.take(t.Context(), many); !strings.Contains(why, "more than 800000 descriptors") {
		t.Errorf("refused because of %q", why)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("refused after %s", took)
	}
	empty := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Resources: make([]*anypb.Any, 1<<20)}
	if why := f.take(t.Context(), empty); !strings.Contains(why, "--max-rules-size") {
		t.Errorf("empty resources are refused because of %q", why)
	}
}
