//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// front is an Envoy in front of each process, so that it is known which one decided. Their filters wait as long as
// Envoy's do by themselves, 20 ms, or without -chaos longer, and answer 500 if there was no answer: by default they
// would let pass.
type front struct {
	envoys  []*proctest.Envoy
	clients []*http.Client
	urls    []string
}

func startFront(t *testing.T, weirs []*weir) *front {
	t.Helper()
	f := &front{}
	p := proxy{
		Domain: "shop", Timeout: fmt.Sprintf("%.3fs", late().Seconds()),
		Upstream: upstream(t, func(http.ResponseWriter, *http.Request) {}),
		RateLimits: `[{actions: [{request_headers: {header_name: x-seen, descriptor_key: seen}}]},
			{actions: [{request_headers: {header_name: x-deny, descriptor_key: deny}}]},
			{actions: [{request_headers: {header_name: x-local, descriptor_key: local}}]}]`,
	}
	for _, s := range weirs {
		p.Weir = []string{s.GRPC}
		transport := &http.Transport{MaxIdleConnsPerHost: 32}
		t.Cleanup(transport.CloseIdleConnections)
		e := p.start(t)
		f.envoys, f.clients = append(f.envoys, e), append(f.clients, &http.Client{Transport: transport})
		f.urls = append(f.urls, "http://"+e.Listener("front"))
	}
	return f
}

// caller asks through the Envoy before the i-th process.
func (f *front) caller(i int) caller {
	return func(ctx context.Context, rule, key string) (passed, answered bool) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.urls[i], http.NoBody)
		if err != nil {
			return false, false
		}
		req.Header.Set("X-"+rule, key)
		resp, err := f.clients[i].Do(req)
		if err != nil {
			return false, false
		}
		_, _ = io.Copy(io.Discard, resp.Body) // it has none
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK, resp.StatusCode == http.StatusOK ||
			resp.StatusCode == http.StatusTooManyRequests
	}
}

// counted has the counts of the Envoys' filters.
type counted struct{ asked, errors, allowed int }

func (f *front) counted() (c counted) {
	for _, e := range f.envoys {
		stat := func(name string) int { return int(e.Stat("cluster.upstream.ratelimit." + name)) }
		c.errors += stat("error")
		c.allowed += stat("failure_mode_allowed")
		c.asked += stat("ok") + stat("over_limit") + stat("error")
	}
	return c
}

// since returns the difference of two counts.
func (c counted) since(before counted) counted {
	return counted{c.asked - before.asked, c.errors - before.errors, c.allowed - before.allowed}
}
