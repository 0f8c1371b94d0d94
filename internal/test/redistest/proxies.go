package redistest

import (
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Twemproxy starts a twemproxy that distributes keys over the servers, until the test ends. It returns its host:port.
func Twemproxy(tb testing.TB, servers ...*Server) string {
	tb.Helper()
	binary := proctest.Program(tb, "nutcracker")
	addr, dir := proctest.FreeAddr(tb), tb.TempDir()
	var pool []string
	for _, s := range servers {
		pool = append(pool, s.Addr()+":1")
	}
	config := fmt.Sprintf(`
pool:
  listen: %s
  hash: fnv1a_64
  distribution: ketama
  redis: true
  servers:
  - %s
`, addr, strings.Join(pool, "\n  - "))
	file := filepath.Join(dir, "nutcracker.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	_, stats, err := net.SplitHostPort(proctest.FreeAddr(tb))
	if err != nil {
		tb.Fatal(err)
	}
	p := proctest.Start(tb, "nutcracker", exec.Command(binary, "--conf-file", file, "--stats-addr", "127.0.0.1",
		"--stats-port", stats, "--output", filepath.Join(dir, "log")))
	p.Await(proctest.Patience, func() error { return launch.Dial(tb.Context(), "tcp", addr) })
	return addr
}

//go:embed envoyproxy.yaml
var envoyProxy string

// EnvoyProxy starts an Envoy that distributes keys over the servers, and returns its host:port. It ends with the test.
func EnvoyProxy(tb testing.TB, servers ...*Server) string {
	tb.Helper()
	var endpoints []string
	for _, s := range servers {
		host, port, err := net.SplitHostPort(s.Addr())
		if err != nil {
			tb.Fatal(err)
		}
		endpoints = append(endpoints,
			fmt.Sprintf("{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}", host, port))
	}
	e := proctest.StartEnvoy(tb, fmt.Sprintf(envoyProxy, strings.Join(endpoints, ", ")))
	return e.Listener("redis")
}
