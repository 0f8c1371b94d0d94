//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// binary is the sidecar under test.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// run builds the sidecar once for all tests; -short runs none that need it.
func run(m *testing.M) int {
	if testing.Short() {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "weir-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "weir")
	build := exec.Command("go", "build", "-o", binary, "../cmd/sidecar")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the sidecar: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// sidecar is a running `weir serve`.
type sidecar struct {
	*proctest.Process

	grpc, http string // host:port
	args       []string
}

// startSidecar serves the rules of a file or directory on ports of its own, with further arguments, and waits
// until it is ready. Under -short it skips the test.
func startSidecar(t *testing.T, rules string, args ...string) *sidecar {
	t.Helper()
	if testing.Short() {
		t.Skip("needs the built binary: left out by -short")
	}
	s := &sidecar{grpc: freeAddr(t), http: freeAddr(t)}
	s.args = append([]string{"serve", "--rules", rules, "--grpc-addr", s.grpc, "--http-addr", s.http}, args...)
	s.start(t)
	return s
}

// start runs the sidecar, again if it has ended.
func (s *sidecar) start(t *testing.T) {
	t.Helper()
	s.run(t)
	s.Await(20*time.Second, func() error { return s.ready(t.Context()) })
}

// run starts the process, which may not be ready for long.
func (s *sidecar) run(t *testing.T) {
	t.Helper()
	s.Process = proctest.Start(t, "sidecar", exec.Command(binary, s.args...))
}

// ready is nil if the sidecar says that it is.
func (s *sidecar) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.http+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz answered %s", resp.Status)
	}
	return nil
}

// page is what the sidecar answers to GET: the status, such as "200 OK", and the text.
func (s *sidecar) page(t *testing.T, path string) (status, text string) {
	t.Helper()
	resp, err := http.Get("http://" + s.http + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Status, string(body)
}

func freeAddr(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(proctest.FreePort(t)))
}

// ruleFile writes a rule file and returns its path.
func ruleFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	edit(t, path, text)
	return path
}

// edit replaces a file as an editor does: a new one is renamed over it.
func edit(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
}

// await polls ready until it is true, and fails the test if that takes longer than within.
func await(t *testing.T, within time.Duration, what string, ready func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !ready() {
		if time.Now().After(deadline) {
			t.Fatalf("after %s: still not %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
