//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// budgets has a window that does not end during a test.
const budgets = `
domain: demo
descriptors:
  - {key: client, rate_limit: {requests_per_unit: 1000000, unit: year}}
  - {key: api_key, rate_limit: {requests_per_unit: 10000, unit: year, reservation: {estimate: 1000, at_most: 5000}}}
`

// model is an upstream that responds like a language model, as the request's query says: usage and status are those of
// the response, stream makes it a stream of events, flaky lets a key's first request fail, and with hold it waits for
// release.
type model struct {
	addr    string
	arrived atomic.Int64
	release chan struct{}
	seen    sync.Map // the keys of flaky requests
}

func newModel(t *testing.T) *model {
	t.Helper()
	m := &model{release: make(chan struct{})}
	m.addr = upstream(t, m.respond)
	return m
}

func (m *model) respond(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // Envoy sends all of it
	m.arrived.Add(1)
	q := r.URL.Query()
	kind, data := "application/json", "%s"
	if q.Has("stream") {
		kind, data = "text/event-stream", "data: {\"choices\": []}\n\ndata: %s\n\ndata: [DONE]\n\n"
	}
	w.Header().Set("Content-Type", kind)
	if q.Has("begin") {
		fmt.Fprint(w, "data: {\"choices\": []}\n\n")
		_ = http.NewResponseController(w).Flush()
	}
	if q.Has("hold") {
		select {
		case <-m.release:
		case <-r.Context().Done():
			return
		}
	}
	if q.Has("break") {
		panic(http.ErrAbortHandler)
	}
	if _, again := m.seen.LoadOrStore(r.Header.Get("X-Api-Key"), true); q.Has("flaky") && !again {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if status := 0; q.Has("status") {
		_, _ = fmt.Sscan(q.Get("status"), &status)
		w.WriteHeader(status)
	}
	if q.Has("usage") {
		fmt.Fprintf(w, data, fmt.Sprintf(`{"choices": [], "usage": {"total_tokens": %s}}`, q.Get("usage")))
	}
}

// gateway is an Envoy with the configuration of the page about LLM tokens, with its Weir and a model behind it.
type gateway struct {
	*client
	*model

	weir  *weir
	envoy *proctest.Envoy
	peeks float64 // calls of remaining
}

// startGateway runs all three. Calls to Weir take at most the timeout; then the request passes, or fails with 500.
func startGateway(t *testing.T, store, timeout string, deny bool) *gateway {
	t.Helper()
	g := &gateway{model: newModel(t)}
	g.weir = startWeir(t, ruleFile(t, budgets), "--store", store, "--store-timeout", "2s")
	waits := fmt.Sprintf(`"timeout":%q,"failure_mode_deny":%t`, timeout, deny)
	set := strings.NewReplacer(
		`"timeout":"0.02s"`, waits, `"timeout":"0.5s"`, waits,
		`"cluster":"app"`, `"cluster":"upstream","timeout":"0s","retry_policy":{"retry_on":"gateway-error","num_retries":1}`)
	g.envoy = proxy{
		Weir: []string{g.weir.GRPC}, Upstream: g.addr, Domain: "demo",
		Filters: set.Replace(fromPage(t, "http_filters")), Routes: set.Replace(fromPage(t, "routes")),
	}.start(t)
	g.client = newClient(t, "127.0.0.1", g.envoy.Listener("front"))
	return g
}

// fromPage returns the value of a key of envoy.yaml that the page about LLM tokens replaces, as JSON.
func fromPage(t *testing.T, key string) string {
	t.Helper()
	page, err := os.ReadFile("../docs/tasks/llm-tokens.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml title=\"envoy.yaml: "+key+"\"\n")
	text, _, _ = strings.Cut(text, "\n```\n")
	var block map[string]any
	if err := yaml.Unmarshal([]byte(text), &block); err != nil || block[key] == nil {
		t.Fatalf("the page has no %s: %v", key, err)
	}
	list, err := json.Marshal(block[key])
	if err != nil {
		t.Fatal(err)
	}
	return string(list)
}

// chat sends a request with a body, by default JSON, and returns its status, or 0 if there is none.
func (g *gateway) chat(ctx context.Context, key, query, body string, contentType ...string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/?"+query, strings.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("X-Api-Key", key)
	req.Header.Set("Content-Type", append(contentType, "application/json")[0])
	r, _ := g.Do(req) // which returns the status 0 with an error
	return r.Status
}

// held sends a request that the model holds, and returns when the model has it. Its status arrives after release.
func (g *gateway) held(ctx context.Context, t *testing.T, key, query, body string, contentType ...string) chan int {
	t.Helper()
	before, done := g.arrived.Load(), make(chan int, 1)
	go func() { done <- g.chat(ctx, key, "hold&"+query, body, contentType...) }()
	proctest.Eventually(t, "arrived", func() bool { return g.arrived.Load() > before })
	return done
}

// answer lets the model answer a request that it holds.
func (g *gateway) answer(t *testing.T) {
	t.Helper()
	select {
	case g.release <- struct{}{}:
	case <-time.After(time.Minute):
		t.Fatal("the model holds no request")
	}
}

// storm sends 100 requests at once, of which so many must reach the model, which then releases them.
func (g *gateway) storm(t *testing.T, passes int64) {
	t.Helper()
	before, denied := g.arrived.Load(), atomic.Int64{}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if g.chat(t.Context(), "storm", "hold&usage=400", `{"max_tokens": 1000}`) == http.StatusTooManyRequests {
				denied.Add(1)
			}
		})
	}
	proctest.Eventually(t, "all decided", func() bool { return denied.Load()+g.arrived.Load()-before == 100 })
	passed := g.arrived.Load() - before
	if passed != passes {
		t.Errorf("%d of 100 requests passed, want %d", passed, passes)
	}
	for range passed {
		g.answer(t)
	}
	all.Wait()
}

// remaining returns what remains of a key's 10,000 tokens.
func (g *gateway) remaining(t *testing.T, key string) int {
	t.Helper()
	look := question("api_key", key)
	look.Domain, look.Descriptors[0].HitsAddend = "demo", wrapperspb.UInt64(0)
	res, err := g.weir.client(t).ShouldRateLimit(t.Context(), look)
	if err != nil {
		t.Fatal(err)
	}
	g.peeks++
	return int(res.GetStatuses()[0].GetLimitRemaining())
}

// awaitUsed waits until so many tokens of a key are charged.
func (g *gateway) awaitUsed(t *testing.T, key string, used int) {
	t.Helper()
	proctest.Eventually(t, fmt.Sprintf("%d tokens of %s are charged", used, key), func() bool {
		return 10_000-g.remaining(t, key) == used
	})
}

// calls returns how many calls Envoy has made.
func (g *gateway) calls() float64 { return g.weir.Metric("weir_request_seconds_count") - g.peeks }

// The ends of requests: what the query of a request to the model costs in the end.
var ends = []struct {
	query string
	used  int
}{
	{"usage=400", 400},
	{"stream&usage=700", 700},
	{"flaky&usage=300", 300},
	{"usage=4000", 4000},
	{"usage=1234567", 10_000}, // at most the budget
	{"usage=0", 0},
	{"", 1000}, // without usage the charge stays
	{"usage=%22x%22", 1000},
	{"status=500", 0},
	{"status=500&usage=77", 77},
	{"status=503", 0},
	{"break", 0}, // Envoy's own 503
}

// TestReservations: of 100 requests at once with max_tokens 1,000 on a budget of 10,000, exactly 10 pass. They use 400
// each, and exactly 6 more pass. Each request is one start and one end, if it is streamed, retried or pipelined, too.
// Whatever a client writes as max_tokens is charged. A client that leaves keeps its charge.
func TestReservations(t *testing.T) {
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			if store == "redis" {
				store = redistest.Start(t).URL()
			}
			g := startGateway(t, store, "30s", true)
			g.storm(t, 10)
			g.awaitUsed(t, "storm", 4000)
			g.storm(t, 6)
			g.awaitUsed(t, "storm", 6400)
			testEnds(t, g)
			testHints(t, g)
			for i, query := range []string{"", "begin&stream"} {
				ctx, cancel := context.WithCancel(t.Context())
				done := g.held(ctx, t, "leaver", query, `{}`)
				cancel()
				<-done
				proctest.Eventually(t, "left", func() bool { return g.envoy.Stat("http.front.downstream_rq_active") == 0 })
				g.chat(t.Context(), "other", "usage=1", `{}`)
				g.awaitUsed(t, "other", i+1)
				g.awaitUsed(t, "leaver", 1000*(i+1))
			}
		})
	}
}

func testEnds(t *testing.T, g *gateway) {
	t.Helper()
	calls := g.calls()
	awaitCalls := func(more float64) {
		calls += more
		proctest.Eventually(t, "counted", func() bool { return g.calls() >= calls })
		if more := g.calls() - calls; more != 0 {
			t.Errorf("%g calls too many", more)
		}
	}
	for _, tt := range ends {
		if g.chat(t.Context(), tt.query, tt.query, `{}`) == 0 {
			t.Errorf("%s: no response", tt.query)
		}
		g.awaitUsed(t, tt.query, tt.used)
		if tt.used == 1000 {
			awaitCalls(2) // no end
		} else {
			awaitCalls(3)
		}
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is lost
	const request = "GET /?usage=400 HTTP/1.1\r\nHost: a\r\nX-Api-Key: pipe\r\n\r\n"
	if _, err := io.WriteString(conn, request+request+request); err != nil {
		t.Fatal(err)
	}
	g.awaitUsed(t, "pipe", 1200)
	awaitCalls(9)
}

func testHints(t *testing.T, g *gateway) {
	t.Helper()
	const js = "application/json"
	for i, tt := range []struct {
		contentType, body string
		charged           int
	}{
		{js, `{"max_tokens": 1000}`, 1000},
		{js, `{"max_tokens": 2000}`, 1000 + 7*157}, // in steps of 5000/32
		{js, `{"max_tokens": 2000000000}`, 5000},
		{js, `{}`, 1000},
		{js, `{"max_tokens": "x"}`, 1000},
		{js, `{"max_tokens": -5}`, 1000},
		{js, `{"max_tokens": 1e400}`, 1000},
		{js, `{"max_tokens": [1]}`, 1000},
		{js, `{"max_tokens": `, 1000},
		{js, ``, 1000},
		{"text/plain", `{"max_tokens": 2000}`, 1000},
		{js + "; charset=utf-8", `{"max_tokens": 2000}`, 1000},
	} {
		key := fmt.Sprint("hint", i)
		done := g.held(t.Context(), t, key, "usage=400", tt.body, tt.contentType)
		g.awaitUsed(t, key, tt.charged)
		g.answer(t)
		if status := <-done; status != http.StatusOK {
			t.Errorf("%s %s: status %d", tt.contentType, tt.body, status)
		}
		g.awaitUsed(t, key, 400)
	}
}

// A request that passes because Weir does not respond is charged its real cost at its end.
func TestReservationsWhileWeirHangs(t *testing.T) {
	g := startGateway(t, "memory", "1s", false)
	g.weir.Signal(syscall.SIGSTOP)
	done := g.held(t.Context(), t, "weir", "usage=400", `{}`)
	g.weir.Signal(syscall.SIGCONT)
	g.awaitUsed(t, "weir", 0) // Weir refunded the late start
	g.answer(t)
	if status := <-done; status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	g.awaitUsed(t, "weir", 400)
}

// If Redis does not respond at the end of a request, the charge stays or is corrected once.
func TestReservationsWhileRedisHangs(t *testing.T) {
	redis := redistest.Start(t)
	g := startGateway(t, redis.URL(), "30s", true)
	done := g.held(t.Context(), t, "redis", "usage=400", `{}`)
	g.awaitUsed(t, "redis", 1000)
	redis.Pause()
	g.answer(t)
	<-done
	proctest.Eventually(t, "lost", func() bool {
		return g.weir.Metric(`weir_reservation_ends_lost_total{domain="demo",limit="",rule="api_key"}`) == 1
	})
	redis.Resume()
	proctest.Eventually(t, "ready", func() bool { return g.weir.Ready(t.Context()) == nil })
	used := 10_000 - g.remaining(t, "redis")
	if used != 1000 && used != 400 {
		t.Errorf("%d tokens are charged, want 1000 or 400", used)
	}
	g.chat(t.Context(), "redis", "usage=400", `{}`)
	g.awaitUsed(t, "redis", used+400)
}
