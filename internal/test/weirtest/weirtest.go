// Package weirtest runs the weir program for a test, as its users have it.
package weirtest

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// patience is how long weir may take to become ready on a busy machine.
const patience = time.Minute

// Binary returns the path of the program, which it builds once a process. Under -short it skips the test.
func Binary(tb testing.TB) string {
	tb.Helper()
	proctest.SkipIfShort(tb, "the built program")
	path, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// build builds bin/test/weir, from the packages that make demo and the benchmark compile, too.
var build = sync.OnceValues(func() (path string, err error) { return launch.Build("weir", "cmd/sidecar", "-trimpath") })

// Run runs a command of weir, such as "top", and returns what it wrote to standard output and standard error.
func Run(tb testing.TB, args ...string) (out string, err error) {
	tb.Helper()
	text, err := exec.Command(Binary(tb), args...).CombinedOutput()
	return string(text), err
}

// Process is a weir that serves.
type Process struct {
	*proctest.Process

	GRPC, HTTP string   // host:port
	Args       []string // of the program, from "serve" on

	tb    testing.TB
	local string // see Local
}

// New returns a weir that will serve on ports of its own, with further arguments.
func New(tb testing.TB, args ...string) *Process {
	tb.Helper()
	p := &Process{tb: tb, GRPC: proctest.FreeAddr(tb), HTTP: proctest.FreeAddr(tb)}
	p.Args = append([]string{"serve", "--grpc-addr", p.GRPC, "--http-addr", p.HTTP}, args...)
	return p
}

// Start runs weir, also again after it has ended, and returns when it is ready.
func (p *Process) Start() {
	p.tb.Helper()
	p.Launch()
	p.AwaitReady()
}

// Launch runs weir and does not wait until it is ready.
func (p *Process) Launch() {
	p.tb.Helper()
	p.Process = proctest.Start(p.tb, "weir", exec.Command(Binary(p.tb), p.Args...))
}

// LaunchVia is Launch by a line of bash, in which "$0" "$@" is the command.
func (p *Process) LaunchVia(line string) {
	p.tb.Helper()
	p.Process = proctest.Start(p.tb, "weir", exec.Command("bash",
		append([]string{"-c", line, Binary(p.tb)}, p.Args...)...))
}

// AwaitReady returns when weir is ready.
func (p *Process) AwaitReady() {
	p.tb.Helper()
	p.Await(patience, func() error { return p.Ready(context.Background()) })
}

// Ready returns nil if weir is ready.
func (p *Process) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return launch.Get(ctx, "http://"+p.HTTP+"/readyz")
}

// Page returns the answer to GET: the status, such as "200 OK", and the body.
func (p *Process) Page(path string) (status, text string) {
	p.tb.Helper()
	resp, err := http.Get("http://" + p.HTTP + path)
	if err != nil {
		p.tb.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.tb.Fatal(err)
	}
	return resp.Status, string(body)
}

// Socket returns the admin socket, as --server takes it.
func (p *Process) Socket() string { return "unix:" + adminapi.Socket(adminapi.DefaultSocket, p.HTTP) }

// Local returns the address, host:port, of a proxy to the admin socket. Who asks there may see the values of keys and
// change state.
func (p *Process) Local() string {
	p.tb.Helper()
	if p.local != "" {
		return p.local
	}
	socket := adminapi.Socket(adminapi.DefaultSocket, p.HTTP)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", "weir"
		r.Out.Host = r.In.Host
	}})
	p.tb.Cleanup(func() {
		proxy.CloseClientConnections() // a browser may still have a request
		proxy.Close()
		transport.CloseIdleConnections()
	})
	p.local = proxy.Listener.Addr().String()
	return p.local
}

// Metric returns the value of a metric by its name and labels, such as `weir_rules_loads_total{result="ok"}`. It
// fails the test if there is no such metric.
func (p *Process) Metric(name string) float64 {
	p.tb.Helper()
	_, text := p.Page("/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				p.tb.Fatal(err)
			}
			return v
		}
	}
	p.tb.Fatalf("no metric %s", name)
	return 0
}
