package xds

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
)

// controlPlane is go-control-plane's server over its snapshot cache, as Envoy Gateway uses them.
type controlPlane struct {
	t     *testing.T
	cache cachev3.SnapshotCache
	addr  string
	stop  func()
	nacks *atomic.Int64
}

func startControlPlane(t *testing.T, addr string) *controlPlane {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &controlPlane{
		t: t, cache: cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil), addr: l.Addr().String(),
		nacks: &atomic.Int64{},
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(ctx, p.cache, serverv3.CallbackFuncs{
		StreamRequestFunc: func(_ int64, r *discoveryv3.DiscoveryRequest) error {
			if r.GetErrorDetail() != nil {
				p.nacks.Add(1)
			}
			return nil
		},
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	p.stop = func() {
		cancel()
		server.Stop()
		<-ended
	}
	t.Cleanup(p.stop)
	return p
}

func (p *controlPlane) set(version int, configs ...*ratelimitv3.RateLimitConfig) {
	p.t.Helper()
	resources := make([]types.Resource, len(configs))
	for i, config := range configs {
		resources[i] = config
	}
	snapshot, err := cachev3.NewSnapshot(strconv.Itoa(version), map[resourcev3.Type][]types.Resource{
		resourcev3.RateLimitConfigType: resources,
	})
	if err == nil {
		err = p.cache.SetSnapshot(p.t.Context(), "envoy-ratelimit", snapshot)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// Envoy Gateway's server sends rules, changes, the same rules again, no rules, and version 1 again after a restart.
// Invalid rules are refused twice; then the server waits for other rules.
func TestGoControlPlane(t *testing.T) {
	p := startControlPlane(t, "127.0.0.1:0")
	c := follow(t, Options{Server: p.addr})
	c.await("a stream", func() bool { return c.Status().Connected })
	p.set(1, partnertest.Domain("a", partnertest.Limit("k", "", 1)), partnertest.Domain("b", partnertest.Limit("k", "", 1)))
	c.want("a k=1/hour", "b k=1/hour")
	p.set(2, partnertest.Domain("a", partnertest.Limit("k", "", 2)), partnertest.Domain("b", partnertest.Limit("k", "", 1)))
	c.want("a k=2/hour", "b k=1/hour")
	<-c.changed
	p.set(3, partnertest.Domain("a", partnertest.Limit("k", "", 2)), partnertest.Domain("b", partnertest.Limit("k", "", 1)))
	c.await("version 3", func() bool { return c.Status().Version == "3" })
	p.set(4, partnertest.Domain("b", partnertest.Limit("k", "", 1)))
	c.want("b k=1/hour")
	p.set(5)
	c.want()
	p.set(6, partnertest.Domain("b", partnertest.Limit("k", "", 6)))
	c.want("b k=6/hour")

	p.set(7, bad("b"))
	c.await("two NACKs", func() bool { return p.nacks.Load() >= 2 })
	c.want("b k=6/hour")
	p.set(8, partnertest.Domain("b", partnertest.Limit("k", "", 8))) // which no wait of Weir's delays
	c.want("b k=8/hour")
	if n := p.nacks.Load(); n != 2 {
		t.Errorf("%d NACKs, want 2: one by the version that is in use, and one by its own", n)
	}

	p.stop()
	c.await("away", func() bool { return !c.Status().Connected })
	again := startControlPlane(t, p.addr)
	again.set(1, partnertest.Domain("c", partnertest.Limit("k", "", 9)))
	c.want("c k=9/hour")
	if strings.Contains(c.log.String(), "panic") {
		t.Error(c.log.String())
	}
}
