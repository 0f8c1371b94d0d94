//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// spellings are paths that some service takes for /login; the generated files must limit them as /login.
var spellings = []string{
	"/login",
	"/login?x=1",
	"/log%69n",
	"/%6Cogin",
	"//login",
	"/x/../login",
	"/x/%2e%2e/login",
	"/./login",
	`/x\..\login`,
	"/login/",
	"/login//",
	"/Login",
	"/LOGIN/",
	"/login;a=b",
	"/login;a=b/",
	"/login/;a=b",
	"/;a=b/login",
	"/x/..;a=b/login",
	"/login/x/..",
	"/login/.",
}

// No other spelling of /login passes its limit, in the generated files and in examples/envoy.yaml.
func TestSpellingsOfAPath(t *testing.T) {
	t.Parallel()
	for name, dirs := range map[string]struct{ config, rules string }{
		"per-path": {"../examples/starter/per-path/envoy.yaml", "../examples/starter/per-path/rules"},
		"examples": {"../examples/envoy.yaml", "../examples/rules"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startWeir(t, filepath.FromSlash(dirs.rules))
			front := startExample(t, filepath.FromSlash(dirs.config), s).Listener("front")
			const limit = 5 // both rule files
			start, passed := time.Now(), 0
			for round := range 2 {
				for _, path := range spellings {
					status, header := sendRaw(t, front, "127.0.0.1", "GET "+path+" HTTP/1.1\r\nHost: shop")
					switch {
					case !strings.HasPrefix(header.Get("X-Ratelimit-Limit"), "5, 5;w=60"):
						t.Errorf("%s: no login limit: status %d, X-RateLimit-Limit %q", path, status, header.Get("X-Ratelimit-Limit"))
					case status == http.StatusOK:
						passed++
					case status != http.StatusTooManyRequests:
						t.Errorf("%s: status %d", path, status)
					case round == 0 && passed < limit:
						t.Errorf("%s: denied after %d", path, passed)
					}
				}
			}
			// The funnel lets one more pass each 12 s, the window five at each full minute.
			if most := limit + limit*(1+int(time.Since(start)/time.Minute)); passed > most {
				t.Errorf("%d passed in %s, want at most %d", passed, time.Since(start), most)
			}

			status, header := sendRaw(t, front, "127.0.0.1", "GET /x%2F..%2Flogin HTTP/1.1\r\nHost: shop")
			if at := header.Get("Location"); status != http.StatusTemporaryRedirect || at != "/login" {
				t.Errorf("an escaped slash: status %d, Location %q, want 307 to /login", status, at)
			}
			for _, path := range []string{"/loginx", "/xlogin", "/x/login", "/login/x"} {
				_, header := sendRaw(t, front, "127.0.0.1", "GET "+path+" HTTP/1.1\r\nHost: shop")
				if strings.HasPrefix(header.Get("X-Ratelimit-Limit"), "5, 5;w=60") {
					t.Errorf("%s counts as a login", path)
				}
			}
		})
	}
}

// startExample runs an Envoy by an example's configuration, with ports of the test's own, which asks Weir.
func startExample(t *testing.T, path string, s *weir) *proctest.Envoy {
	t.Helper()
	config, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(s.GRPC, ":")
	_, app, _ := strings.Cut(proctest.FreeAddr(t), ":")
	ports := strings.NewReplacer("port_value: 8081", "port_value: "+port, "port_value: 10000", "port_value: 0",
		"port_value: 10001", "port_value: "+app, "0.0.0.0", "127.0.0.1", "timeout: 0.02s", "timeout: 10s")
	return proctest.StartEnvoy(t, ports.Replace(string(config)))
}

// sendRaw sends a request with exactly these lines from an address: http.Client would clean some paths.
func sendRaw(t *testing.T, addr, from, head string) (status int, header http.Header) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // one request
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "%s\r\nConnection: close\r\n\r\n", head); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%s: %v", head, err)
	}
	_ = res.Body.Close() // the connection ends with it
	return res.StatusCode, res.Header
}
