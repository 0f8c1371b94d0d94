package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

func TestMain(m *testing.M) { casetest.FindLeaks(m) }

const patience = proctest.Patience

var replace = proctest.Replace

// rulesOf is one rule, by client, that lets n requests a year pass: no window ends while a test counts.
func rulesOf(n string) string {
	return "domain: shop\ndescriptors: [{key: client, rate_limit: {requests_per_unit: " + n + ", unit: year}}]\n"
}

// options are those of a process on ports of its own, with the rules in a file of its own.
func options(t *testing.T, rules string) Options {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if rules != "" {
		replace(t, file, rules)
	}
	return Options{
		RulesOptions: RulesOptions{Rules: []string{file}, MaxRulesSize: 1 << 20, Poll: time.Hour},
		StoreOptions: StoreOptions{
			Store: "memory", StoreTimeout: 10 * time.Second, OnStoreFailure: "allow", FallbackReplicas: 1,
			MemoryMaxCounters: 10_000,
		},
		GRPCOptions:   GRPCOptions{GRPCAddr: "127.0.0.1:0"},
		HTTPOptions:   HTTPOptions{HTTPAddr: "127.0.0.1:0", AdminSocket: "auto"},
		DecideOptions: DecideOptions{MaxDescriptors: 10, MaxCounters: 1000, MaxDelayed: 100, RetryAfter: true},
		Clients:       conns.Bounds{ReceiveTimeout: patience},
		Metrics:       metrics.Options{MaxRules: 100, NearLimitRatio: 0.8},
		StopOptions:   StopOptions{StopTimeout: patience},
		Build:         Build{Version: "v1.2.3", Commit: "abc", Go: "go1"},
	}
}

// process is an App that runs.
type process struct {
	t      *testing.T
	app    *App
	log    *proctest.Buffer
	client pb.RateLimitServiceClient
	health healthpb.HealthClient
	socket *http.Client // by the admin socket
	stop   context.CancelFunc
	err    error         // what Run returned,
	ended  chan struct{} // once this is closed
}

// start makes an App, lets the test prepare it, and runs it until the test ends.
func start(t *testing.T, o Options, prepare ...func(*App)) *process {
	t.Helper()
	p := &process{t: t, log: &proctest.Buffer{}, ended: make(chan struct{})}
	o.Log = slog.New(slog.NewTextHandler(p.log, nil))
	var err error
	if p.app, err = New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, f := range prepare {
		f(p.app)
	}
	socket := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", adminapi.Socket("auto", p.app.HTTPAddr()))
	}}
	p.socket = &http.Client{Transport: socket}
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background()) // t.Context ends too early, before Cleanup
	go func() {
		defer close(p.ended)
		p.err = errors.Join(p.app.Run(ctx), p.app.Close())
	}()

	conn, err := grpc.NewClient(strings.Replace(p.app.GRPCAddr(), "127.0.0.1", "passthrough:///127.0.0.1", 1),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	p.client, p.health = pb.NewRateLimitServiceClient(conn), healthpb.NewHealthClient(conn)
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		p.wait()
		socket.CloseIdleConnections()
		http.DefaultClient.CloseIdleConnections()
	})
	return p
}

// wait ends the process, as a signal would, and waits for it.
func (p *process) wait() {
	p.t.Helper()
	p.stop()
	select {
	case <-p.ended:
		if p.err != nil {
			p.t.Errorf("Run returns %v", p.err)
		}
	case <-time.After(patience):
		p.t.Fatalf("the process does not end; log:\n%s", p.log)
	}
}

// ask sends one request of the client and returns the overall code, or the error's text.
func (p *process) ask(client string) string {
	p.t.Helper()
	return p.askIn(context.Background(), client)
}

// askIn is ask with what ctx carries.
func (p *process) askIn(ctx context.Context, client string) string {
	p.t.Helper()
	return p.askBy(ctx, p.client, client)
}

// askOver is ask over another connection.
func (p *process) askOver(conn *grpc.ClientConn) string {
	p.t.Helper()
	return p.askBy(context.Background(), pb.NewRateLimitServiceClient(conn), "me")
}

func (p *process) askBy(ctx context.Context, by pb.RateLimitServiceClient, client string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res, err := by.ShouldRateLimit(ctx, &pb.RateLimitRequest{
		Domain: "shop",
		Descriptors: []*commonpb.RateLimitDescriptor{{
			Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: "client", Value: client}},
		}},
	}, grpc.WaitForReady(true))
	if err != nil {
		return err.Error()
	}
	return res.GetOverallCode().String()
}

// serving returns the status of the service in grpc.health.v1.
func (p *process) serving() string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := p.health.Check(ctx, &healthpb.HealthCheckRequest{Service: "envoy.service.ratelimit.v3.RateLimitService"},
		grpc.WaitForReady(true))
	if err != nil {
		p.t.Fatal(err)
	}
	return res.GetStatus().String()
}

// http sends a request through the admin socket.
func (p *process) http(method, path string) (status int, body string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+p.app.HTTPAddr()+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	res, err := p.socket.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	text, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// healthz is the status of /healthz over a connection of its own; 0 if it is not answered.
func (p *process) healthz() string {
	p.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Get("http://" + p.app.HTTPAddr() + "/healthz")
	if err != nil {
		return "0"
	}
	if err := res.Body.Close(); err != nil {
		p.t.Error(err)
	}
	return strconv.Itoa(res.StatusCode)
}

// ready is the status of /readyz.
func (p *process) ready() string {
	p.t.Helper()
	status, _ := p.http("GET", "/readyz")
	return strconv.Itoa(status)
}

// want polls until got returns what is wanted.
func want(t *testing.T, what, want string, got func() string) {
	t.Helper()
	proctest.Await(t, patience, func() error {
		if is := got(); is != want {
			return fmt.Errorf("%s is %q, want %q", what, is, want)
		}
		return nil
	})
}

// metric is the value of a series; none if it is not there.
func (p *process) metric(series string) string {
	p.t.Helper()
	answer := httptest.NewRecorder()
	p.app.metrics.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return "none"
}

// logged says how many lines of the log contain the text.
func (p *process) logged(text string) int {
	n := 0
	for line := range strings.Lines(p.log.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
