//go:build e2e

package e2e

import (
	"net/http"
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
			front := newClient(t, "127.0.0.1", startExample(t, filepath.Join(dir, "envoy.yaml"), s).Listener("front"))
			if len(uses[use]) == 0 {
				t.Fatal("nothing says how this use limits")
			}
			for _, a := range uses[use] {
				a.check(t, front)
			}
		})
	}
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
func (a starterRequest) check(t *testing.T, front *client) {
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

func (a starterRequest) send(t *testing.T, c *client, n int) int {
	t.Helper()
	path := a.path
	if strings.HasSuffix(path, "=") {
		path += strconv.Itoa(n)
	}
	if a.key == "" {
		return c.status(t, path)
	}
	return c.status(t, path, "X-Api-Key", a.key)
}
