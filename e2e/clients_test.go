//go:build e2e

package e2e

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Weir never refuses Envoy: neither for many requests at once, nor for requests that Envoy resets because clients go
// away or answers are late, nor for connections that come and go.
func TestEnvoyIsNeverRefused(t *testing.T) {
	s := startWeir(t, ruleFile(t, `
domain: shop
descriptors:
  - key: remote_address
    rate_limit: {name: per-client, algorithm: leaky_queue, requests_per_unit: 20, unit: second, max_wait: 10s}
`), "--grpc-max-connection-age", "1s")
	e := proxy{Weir: []string{s.GRPC}, Domain: "shop"}.start(t)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 50}}
	defer client.CloseIdleConnections()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	url := "http://" + e.Listener("front") + "/"
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				wait := time.Duration(1+i%40) * time.Millisecond // most give up while the answer is held
				ctx, cancel := context.WithTimeout(ctx, wait)
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
				if err == nil {
					if res, err := client.Do(req); err == nil {
						_ = res.Body.Close()
					}
				}
				cancel()
			}
		})
	}
	<-time.After(casetest.Pick(2*time.Second, 4*time.Second))
	proctest.Eventually(t, "asked 1,000 times by Envoy", func() bool {
		return e.Stat("cluster.weir.upstream_rq_total") >= 1000
	})
	stop()
	wg.Wait()
	_, metrics := s.Page("/metrics")
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "weir_clients_refused_total{") && !strings.HasSuffix(line, " 0\n") {
			t.Errorf("refused: %s", line)
		}
	}
	proctest.Eventually(t, "free of requests that have not arrived whole", func() bool {
		return s.Metric("weir_client_memory_bytes") == 0
	})
}

// The page shows the values of keys after its user has entered the token.
func TestPageWithAToken(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cret-s3cret-s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := partnertest.StartBrowser(t)
	s := startWeir(t, ruleFile(t, pageRules), "--http-token-file", token)
	askOf(t, s.client(t), 1, "remote_address", "10.0.0.1")
	b.Look(1200, 1000, false)
	b.Open("http://" + s.HTTP + "/")
	b.Await(`document.getElementById("top-rows").innerText.startsWith("remote_address=#")`)
	b.Eval(`document.getElementById("token").value = "s3cret-s3cret-s3cret", document.getElementById("token").focus()`)
	b.Press("Enter")
	b.Await(`document.getElementById("top-rows").innerText.startsWith("remote_address=10.0.0.1")`)
}
