//go:build e2e

package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/examples/starter"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// starterRequest is a kind of request, and its limit as the comments of the generated rules have it. Without a burst
// it has none.
type starterRequest struct {
	path, key string
	burst     int
	perSecond float64
}

// What init writes works as it is: a real Envoy and a process limit as the comments say.
func TestInit(t *testing.T) {
	t.Parallel()
	uses := map[string][]starterRequest{
		"per-client": {{path: "/", burst: 20, perSecond: 1}},
		"per-api-key": {
			{path: "/", key: "alice", burst: 20, perSecond: 1},
			{path: "/", key: "bob", burst: 20, perSecond: 1},
			{path: "/", key: "partner-1", burst: 100, perSecond: 10},
			{path: "/", burst: 5, perSecond: 5. / 60},
		},
		"per-path": {
			{path: "/login?x=", burst: 5, perSecond: 5. / 60},
			{path: "/search/x?y=", burst: 50, perSecond: 10},
			{path: "/other"},
		},
		"global": {{path: "/", burst: 50, perSecond: 10}},
	}
	for _, use := range starter.Uses {
		t.Run(use, func(t *testing.T) {
			t.Parallel()
			dir := initialized(t, use)
			s := startWeir(t, filepath.Join(dir, "rules"))
			front := startInitialized(t, dir, s).Listener("front")
			if len(uses[use]) == 0 {
				t.Fatal("nothing says how this use limits")
			}
			for _, a := range uses[use] {
				a.check(t, front)
			}
		})
	}
}

// startInitialized runs an Envoy by the configuration of init, which calls Weir.
func startInitialized(t *testing.T, dir string, s *weir) *proctest.Envoy {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(dir, "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(s.GRPC, ":")
	_, app, _ := strings.Cut(proctest.FreeAddr(t), ":")
	ports := strings.NewReplacer("port_value: 8081", "port_value: "+port, "port_value: 10000", "port_value: 0",
		"port_value: 10001", "port_value: "+app, "0.0.0.0", "127.0.0.1", "timeout: 0.02s", "timeout: 10s")
	return proctest.StartEnvoy(t, ports.Replace(string(config)))
}

// initialized is a directory that `weir init` has written.
func initialized(t *testing.T, use string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ratelimit")
	if out, err := proctest.RunWeir(t, "init", "--for", use, dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// check sends requests until one is denied.
func (a starterRequest) check(t *testing.T, front string) {
	t.Helper()
	start := time.Now()
	for n := range 1000 {
		status := a.send(t, front, n)
		most := float64(a.burst) + a.perSecond*time.Since(start).Seconds() + 1
		switch {
		case status == http.StatusTooManyRequests && (a.burst == 0 || n < a.burst):
			t.Fatalf("%+v: denied after %d", a, n)
		case status == http.StatusTooManyRequests:
			return
		case status != http.StatusOK:
			t.Fatalf("%+v: status %d", a, status)
		case a.burst == 0 && n == 100:
			return
		case a.burst > 0 && float64(n+1) > most:
			t.Fatalf("%+v: %d passed in %s", a, n+1, time.Since(start))
		}
	}
	t.Fatalf("%+v: none of 1000 was denied: this machine is too slow to reach the limit", a)
}

func (a starterRequest) send(t *testing.T, front string, n int) int {
	t.Helper()
	url := "http://" + front + a.path
	if strings.HasSuffix(url, "=") {
		url += strconv.Itoa(n)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if a.key != "" {
		req.Header.Set("X-Api-Key", a.key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}
