//go:build e2e

package envoymodule

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// What the soak sends: aborts are requests whose client goes away, at a random moment, with a reset or without.
const (
	soakClients = 32
	soakAborts  = 50 // one of so many requests
	soakKeys    = 2000
)

// TestSoak sends requests through a real Envoy with two workers and two filters of Weir, one with counters in memory
// and one with Redis, while clients go away, the listener is updated, rules change, and Redis is paused, killed and
// started. Envoy lives, answers each request once, and neither its memory nor Weir's goroutines grow.
//
// The long form (WEIR_LONG=1) sends a million requests.
func TestSoak(t *testing.T) {
	s := newSoak(t)
	requests := int64(casetest.Pick(20_000, 1_000_000))
	s.run(t, requests/10) // the counters of all keys, pools, buffers: what is made once
	before := s.rest(t)
	s.run(t, requests/2-requests/10)
	middle := s.rest(t)
	s.run(t, requests/2)
	after := s.rest(t)
	t.Logf("%d requests: %d answers with 200, %d with 429, %d clients went away, %d sent again; %d updates of the "+
		"listener, %d of the rules, %d failures of Redis", s.sent.Load(), s.ok.Load(), s.denied.Load(), s.aborted.Load(),
		s.again.Load(), s.listeners.Load(), s.reloads.Load(), s.failures.Load())
	t.Logf("RSS of Envoy %.1f MB after a tenth, %.1f after half, %.1f at the end; goroutines %d, %d, %d; panics %d",
		mb(before.rss), mb(middle.rss), mb(after.rss), before.goroutines, middle.goroutines, after.goroutines, after.panics)
	// The first half of the garbage collector's headroom fills at first; then nothing may come on top of it.
	if most := middle.rss + middle.rss/10 + 10<<20; after.rss > most {
		t.Errorf("RSS grew from %.1f to %.1f MB in the second half", mb(middle.rss), mb(after.rss))
	}
	if after.goroutines > middle.goroutines+10 {
		t.Errorf("goroutines grew from %d to %d in the second half", middle.goroutines, after.goroutines)
	}
	if s.denied.Load() < requests/20 {
		t.Errorf("%d requests were denied, want more", s.denied.Load())
	}
	if after.panics != 0 {
		t.Errorf("%d panics", after.panics)
	}
	s.checkStats(t)
	if code := s.envoy.Terminate(patience); code != 0 {
		t.Errorf("Envoy ended with code %d:\n%s", code, s.envoy.Output())
	}
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }

type soak struct {
	envoy *proctest.Envoy
	redis *redistest.Server
	rules string // the file
	lds   string // the file
	front string // host:port
	admin string // host:port of Weir

	sent, ok, denied, aborted    atomic.Int64
	again                        atomic.Int64 // requests that were sent again, since Envoy closed the connection
	listeners, reloads, failures atomic.Int64
	version                      atomic.Int64 // of listener and rules
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	folder := t.TempDir()
	s := &soak{
		redis: redistest.Start(t), rules: filepath.Join(folder, "rules.yaml"), lds: filepath.Join(folder, "lds.yaml"),
		front: proctest.FreeAddr(t), admin: proctest.FreeAddr(t),
	}
	s.writeRules(t)
	s.writeListener(t)
	s.envoy = proctest.StartEnvoyWith(t, "node: {id: soak, cluster: soak}\ndynamic_resources: {lds_config: {path_config_source: {path: "+
		s.lds+", watched_directory: {path: "+folder+"}}}}\n"+bootstrap(nil, []string{cluster("upstream", upstream(t))}),
		proctest.EnvoyOptions{Workers: 2, Modules: moduleFolder(t), Args: []string{"--drain-time-s", "1"}})
	s.envoy.Await(patience, func() error {
		_, err := s.ask(t.Context(), http.DefaultClient, "ready")
		return err
	})
	return s
}

func (s *soak) writeRules(t *testing.T) {
	t.Helper()
	proctest.Replace(t, s.rules, fmt.Sprintf(`
domain: shop
descriptors:
  - key: key
    value: k0
    rate_limit: {unit: year, requests_per_unit: %d}
  - key: key
    value: k1
    rate_limit: {unit: second, requests_per_unit: 5, algorithm: leaky_queue, max_wait: 50ms}
  - key: key
    rate_limit: {unit: year, requests_per_unit: %d}
`, s.version.Add(1), casetest.Pick(8, 300)))
}

func (s *soak) writeListener(t *testing.T) {
	t.Helper()
	_, port, err := net.SplitHostPort(s.front)
	if err != nil {
		t.Error(err)
		return
	}
	flag := "--rules=" + s.rules
	memory := moduleFilter(config([]string{flag, "--http-addr=" + s.admin, "--log-level=error"}, byKey))
	inRedis := moduleFilter(config([]string{
		flag, "--store=" + s.redis.URL(), "--store-timeout=100ms", "--on-store-failure=allow", "--log-level=error",
	}, byKey, fmt.Sprintf(`"status_on_error": {"code": %d}`, 500+s.version.Add(1)%4)))
	l := strings.Replace(listener("front", []string{memory, inRedis}, toUpstream), "port_value: 0", "port_value: "+port, 1)
	l = strings.Replace(l, "{name: front,", `{"@type": type.googleapis.com/envoy.config.listener.v3.Listener, name: front,`, 1)
	proctest.Replace(t, s.lds, "resources: ["+l+"]\n")
}

// run sends n requests, while everything else happens.
func (s *soak) run(t *testing.T, n int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var disturb, clients sync.WaitGroup
	disturb.Go(func() { every(ctx, 700*time.Millisecond, func() { s.writeListener(t); s.listeners.Add(1) }) })
	disturb.Go(func() { every(ctx, 300*time.Millisecond, func() { s.writeRules(t); s.reloads.Add(1) }) })
	disturb.Go(func() { s.disturbRedis(ctx) })
	left := atomic.Int64{}
	left.Store(n)
	for range soakClients {
		clients.Go(func() {
			transport := &http.Transport{MaxIdleConnsPerHost: 1}
			defer transport.CloseIdleConnections()
			c := &http.Client{Transport: transport, Timeout: 10 * patience}
			for left.Add(-1) >= 0 {
				s.one(t, c)
			}
		})
	}
	clients.Wait()
	cancel()
	disturb.Wait()
}

func every(ctx context.Context, d time.Duration, f func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}

// disturbRedis pauses, kills and starts Redis, and leaves it running.
func (s *soak) disturbRedis(ctx context.Context) {
	for i := 0; ; i++ {
		if !sleep(ctx, 600*time.Millisecond) {
			return
		}
		s.failures.Add(1)
		if i%2 == 0 {
			s.redis.Pause()
			sleep(ctx, 300*time.Millisecond)
			s.redis.Resume()
		} else {
			s.redis.Kill()
			sleep(ctx, 300*time.Millisecond)
			s.redis.Restart() //nolint:contextcheck // it waits as long as it needs
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// one sends a request. Now and then the client goes away.
func (s *soak) one(t *testing.T, c *http.Client) {
	t.Helper()
	key := "k" + strconv.Itoa(rand.IntN(soakKeys))
	if rand.IntN(soakAborts) == 0 {
		s.abort(t, key)
		return
	}
	status, err := s.ask(t.Context(), c, key)
	switch {
	case err != nil:
		t.Errorf("request: %v", err)
	case status == http.StatusOK:
		s.ok.Add(1)
	case status == http.StatusTooManyRequests:
		s.denied.Add(1)
	default:
		t.Errorf("status %d", status)
	}
}

// ask sends a request and returns the status. The client sends it again if Envoy closed a connection while it was idle.
func (s *soak) ask(ctx context.Context, c *http.Client, key string) (int, error) {
	tries := int64(0)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { tries++ }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.front, http.NoBody)
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-Key", key)
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	_, err = io.Copy(io.Discard, resp.Body)
	s.sent.Add(1)
	s.again.Add(tries - 1)
	return resp.StatusCode, err
}

// abort sends a request on a connection of its own and goes away, with a reset or without, soon or late.
func (s *soak) abort(t *testing.T, key string) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.front)
	if err != nil {
		t.Errorf("dial: %v", err)
		return
	}
	defer conn.Close() //nolint:errcheck // it goes away
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nhost: soak\r\nx-key: "+key+"\r\n\r\n"); err != nil {
		return
	}
	s.sent.Add(1)
	s.aborted.Add(1)
	if rand.IntN(2) == 0 {
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
	}
	if tcp, ok := conn.(*net.TCPConn); ok && rand.IntN(2) == 0 {
		_ = tcp.SetLinger(0)
	}
}

// soakRest is the resources of an idle Envoy.
type soakRest struct {
	rss        int64
	goroutines int
	panics     int
}

// rest waits until Envoy is idle, and returns what it has then.
func (s *soak) rest(t *testing.T) (r soakRest) {
	t.Helper()
	s.envoy.Await(patience, func() error {
		if n := s.envoy.Stat("http.front.downstream_rq_active"); n != 0 {
			return fmt.Errorf("%d requests are active", n)
		}
		if n := s.envoy.Stat("listener_manager.total_filter_chains_draining") +
			s.envoy.Stat("listener_manager.total_listeners_draining"); n != 0 {
			return fmt.Errorf("%d listeners drain", n)
		}
		return nil
	})
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.envoy.PID()))
	if err != nil {
		t.Fatalf("Envoy is gone: %v\n%s", err, s.envoy.Output())
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		t.Fatal(err)
	}
	r.rss = resident * int64(os.Getpagesize())
	r.goroutines, r.panics = int(metric(t, s.admin, "go_goroutines")), int(metric(t, s.admin, "weir_panics_total"))
	return r
}

// checkStats compares what Envoy counted with what the clients saw: each request was answered once, and only those are
// missing whose clients went away.
func (s *soak) checkStats(t *testing.T) {
	t.Helper()
	stat := func(name string) int64 { return int64(s.envoy.Stat("http.front." + name)) }
	total, completed := stat("downstream_rq_total"), stat("downstream_rq_completed")
	passed, refused, failed := stat("downstream_rq_2xx"), stat("downstream_rq_4xx"), stat("downstream_rq_5xx")
	t.Logf("Envoy: %d requests, %d answered: %d 2xx, %d 4xx, %d 5xx", total, completed, passed, refused, failed)
	sent, again, aborted := s.sent.Load(), s.again.Load(), s.aborted.Load()
	gone := aborted + again // Envoy cuts what a removed listener still has after --drain-time-s
	if total > sent+again || total < sent-aborted {
		t.Errorf("Envoy counted %d requests; %d were sent, and of these %d aborted; %d sent again", total, sent, aborted,
			again)
	}
	if failed != 0 || completed != passed+refused {
		t.Errorf("%d answers are not %d with 2xx and %d with 4xx; %d with 5xx, want none", completed, passed, refused, failed)
	}
	if passed < s.ok.Load() || passed > s.ok.Load()+gone+1 || refused < s.denied.Load() ||
		refused > s.denied.Load()+gone {
		t.Errorf("Envoy answered %d with 2xx and %d with 4xx; the clients got %d and %d, %d went away", passed, refused,
			s.ok.Load(), s.denied.Load(), aborted)
	}
	if total-completed > gone {
		t.Errorf("%d requests were not answered, but only %d clients went away, and %d sent again", total-completed, aborted,
			again)
	}
	if again > sent/50 {
		t.Errorf("%d of %d requests were sent again: Envoy closes connections too often", again, sent)
	}
	if n := int64(s.envoy.Stat("dynamicmodulescustom.error")); n != 0 {
		t.Errorf("Weir could not decide %d requests, want the failure policy to decide", n)
	}
	if s.listeners.Load() > 2 && s.envoy.Stat("listener_manager.listener_modified")+
		s.envoy.Stat("listener_manager.listener_in_place_updated") == 0 {
		t.Error("Envoy has not updated the listener")
	}
	if n := s.envoy.Stat("listener_manager.lds.update_rejected"); n != 0 {
		t.Errorf("Envoy refused %d updates of the listener:\n%s", n, s.envoy.Output())
	}
}
