package proctest

import (
	"context"
	"fmt"
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

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// WeirBinary returns the path of the program, which it builds once per process. Under -short it skips the test.
func WeirBinary(tb testing.TB) string {
	tb.Helper()
	SkipIfShort(tb, "the built program")
	path, err := buildWeir()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// buildWeir builds bin/test/weir from the same packages as make demo and the benchmark.
var buildWeir = sync.OnceValues(func() (string, error) { return launch.Build("weir", "cmd/sidecar", "-trimpath") })

// RunWeir runs a command of weir, such as "top", and returns its standard output and standard error.
func RunWeir(tb testing.TB, args ...string) (out string, err error) {
	tb.Helper()
	text, err := exec.Command(WeirBinary(tb), args...).CombinedOutput()
	return string(text), err
}

// Weir is a weir that serves.
type Weir struct {
	*Process

	GRPC, HTTP string   // host:port
	Args       []string // arguments of the program, beginning with "serve"

	tb    testing.TB
	local string // see Local
}

// NewWeir returns a Weir that will serve on its own ports, with further arguments.
func NewWeir(tb testing.TB, args ...string) *Weir {
	tb.Helper()
	p := &Weir{tb: tb, GRPC: FreeAddr(tb), HTTP: FreeAddr(tb)}
	p.Args = append([]string{"serve", "--grpc-addr", p.GRPC, "--http-addr", p.HTTP}, args...)
	return p
}

// Start runs weir, possibly again after it has ended, and returns when it is ready.
func (p *Weir) Start() {
	p.tb.Helper()
	p.Launch()
	p.AwaitReady()
}

// Launch runs weir without waiting until it is ready.
func (p *Weir) Launch() {
	p.tb.Helper()
	p.Process = Start(p.tb, "weir", exec.Command(WeirBinary(p.tb), p.Args...))
}

// LaunchVia is Launch through a line of bash, in which "$0" "$@" is the command.
func (p *Weir) LaunchVia(line string) {
	p.tb.Helper()
	p.Process = Start(p.tb, "weir", exec.Command("bash",
		append([]string{"-c", line, WeirBinary(p.tb)}, p.Args...)...))
}

// AwaitReady waits until weir is ready.
func (p *Weir) AwaitReady() {
	p.tb.Helper()
	p.Await(Patience, func() error { return p.Ready(context.Background()) })
}

// Ready returns nil if weir is ready.
func (p *Weir) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return launch.Ready(ctx, "http://"+p.HTTP+"/readyz")
}

// Page returns the response to GET: the status, such as "200 OK", and the body.
func (p *Weir) Page(path string) (status, text string) {
	p.tb.Helper()
	r := (&Client{http.DefaultClient, "http://" + p.HTTP}).Get(p.tb, path)
	return fmt.Sprint(r.Status, " ", http.StatusText(r.Status)), r.Body
}

// Socket returns the default admin socket in the form of --server. This package imports no package of Weir.
func (p *Weir) Socket() string {
	_, port, _ := net.SplitHostPort(p.HTTP)
	return "unix:@weir-" + port
}

// Local returns the address, host:port, of a proxy to the admin socket. Its clients may see the values of keys and
// change state.
func (p *Weir) Local() string {
	p.tb.Helper()
	if p.local != "" {
		return p.local
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(p.Socket(), "unix:"))
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
func (p *Weir) Metric(name string) float64 {
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
