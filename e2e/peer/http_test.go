//go:build e2e

package peer

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// TestHTTP compares what both answer on their HTTP and debug addresses.
func TestHTTP(t *testing.T) {
	t.Parallel()
	p := startPair(t, writeRules(t, map[string]string{"shop.yaml": metricRules}), env{})
	for _, tt := range []struct{ method, body string }{
		{http.MethodPost, `{"domain": "shop", "descriptors": [{"entries": [{"key": "plain", "value": "x"}]}]}`},
		{http.MethodGet, `{"domain": "shop", "descriptors": [{"entries": [{"key": "plain"}]}], "hitsAddend": 2}`},
		{http.MethodPut, `{"domain": "shop", "descriptors": [{"entries": [{"key": "plain"}]}], "hits_addend": 2}`},
		{http.MethodPost, `{"domain": "nowhere", "descriptors": [{"entries": [{"key": "plain", "value": "x"}]}]}`},
		{http.MethodPost, `{"domain": "shop", "descriptors": []}`},
		{http.MethodPost, `{"domain": "", "descriptors": [{"entries": [{"key": "plain", "value": "x"}]}]}`},
		{http.MethodPost, `{"domain": 5}`},
		{http.MethodPost, `{"nonsense": 5}`},
		{http.MethodPost, ``},
		{http.MethodPost, `nonsense`},
	} {
		before := time.Now()
		peer := p.peer.get(t, p.peer.http, tt.method, "/json", tt.body)
		weir := p.weir.get(t, p.weir.http, tt.method, "/json", tt.body)
		if peer.code != weir.code {
			t.Errorf("/json %s %s: peer %d, Weir %d", tt.method, tt.body, peer.code, weir.code)
		}
		if peer.code == http.StatusBadRequest || peer.code != weir.code {
			continue // the text of an error is Weir's own: a known difference
		}
		if peer.kind != weir.kind {
			t.Errorf("/json %s %s: peer %s, Weir %s", tt.method, tt.body, peer.kind, weir.kind)
		}
		a, b := &pb.RateLimitResponse{}, &pb.RateLimitResponse{}
		if protojson.Unmarshal([]byte(peer.body), a) != nil || protojson.Unmarshal([]byte(weir.body), b) != nil {
			t.Errorf("/json %s %s: peer %q, Weir %q", tt.method, tt.body, peer.body, weir.body)
		}
		for _, d := range differences(&answer{resp: a, before: before}, &answer{resp: b, after: time.Now()}) {
			t.Errorf("/json %s %s: differ in %s", tt.method, tt.body, d)
		}
	}
	peer := p.peer.get(t, p.peer.http, "GET", "/healthcheck", "")
	weir := p.weir.get(t, p.weir.http, "GET", "/healthcheck", "")
	if peer != weir {
		t.Errorf("/healthcheck: peer %v, Weir %v", peer, weir)
	}
	peer, weir = p.peer.get(t, p.peer.debug, "GET", "/rlconfig", ""), p.weir.get(t, p.weir.debug, "GET", "/rlconfig", "")
	if a, b := sortedLines(peer.body), sortedLines(weir.body); a != b || peer.code != weir.code {
		t.Errorf("/rlconfig: peer %d\n%s\nWeir %d\n%s", peer.code, a, weir.code, b)
	}
	for _, path := range []string{"/", "/stats"} {
		if weir := p.weir.get(t, p.weir.debug, "GET", path, ""); weir.code != http.StatusOK {
			t.Errorf("debug %s: Weir %d %s", path, weir.code, weir.body)
		}
	}
	for _, name := range []string{"", "ratelimit", "other"} {
		if a, b := p.peer.health(t, name), p.weir.health(t, name); a != b {
			t.Errorf("gRPC health of %q: peer %s, Weir %s", name, a, b)
		}
	}
}

func (s *service) health(t *testing.T, name string) string {
	t.Helper()
	client := grpc_health_v1.NewHealthClient(s.conn)
	resp, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: name})
	if err != nil {
		return "error"
	}
	return resp.GetStatus().String()
}

// page is an answer by HTTP.
type page struct {
	code       int
	kind, body string
}

func (s *service) get(t *testing.T, addr, method, path, body string) page {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return page{body: fmt.Sprint(err)}
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return page{resp.StatusCode, resp.Header.Get("Content-Type"), string(text)}
}

func sortedLines(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}
