//go:build e2e

package e2e

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// client is an HTTP client at an address of its own: all of 127.0.0.0/8 is this machine.
type client struct{ proctest.Client }

func newClient(t *testing.T, from, to string) *client {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{proctest.Client{
		HTTP: &http.Client{Transport: transport, Timeout: 20 * time.Second}, URL: "http://" + to,
	}}
}

// sample is one request and how it was answered.
type sample struct {
	began  time.Time
	took   time.Duration
	status int
	header http.Header
	body   string
	err    error
}

// get sends one request; header is pairs of name and value.
func (c *client) get(ctx context.Context, path string, header ...string) (s sample) {
	s.began = time.Now()
	defer func() { s.took = time.Since(s.began) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, http.NoBody)
	if err != nil {
		s.err = err
		return s
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	r, err := c.Do(req)
	s.status, s.header, s.body, s.err = r.Status, r.Header, r.Body, err
	return s
}

// status sends one request and returns its status.
func (c *client) status(t *testing.T, path string, header ...string) int {
	t.Helper()
	return c.Get(t, path, header...).Status
}

// burst sends n requests over eight connections at once.
func (c *client) burst(ctx context.Context, n int, path string, header ...string) []sample {
	out := make([]sample, n)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < n; i += 8 {
				out[i] = c.get(ctx, path, header...)
			}
		})
	}
	wg.Wait()
	return out
}

// traffic is requests that go on and on.
type traffic struct {
	stopped context.CancelFunc
	wg      sync.WaitGroup
	mu      sync.Mutex
	samples []sample
}

// goOn sends requests from four connections, about 800 a second, until stop is called.
func (c *client) goOn(t *testing.T, path string, header ...string) *traffic {
	t.Helper()
	ctx, stopped := context.WithCancel(t.Context())
	tr := &traffic{stopped: stopped}
	for range 4 {
		tr.wg.Go(func() {
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			for ctx.Err() == nil {
				s := c.get(context.WithoutCancel(ctx), path, header...) // the last one is answered, too
				tr.mu.Lock()
				tr.samples = append(tr.samples, s)
				tr.mu.Unlock()
				<-pace.C
			}
		})
	}
	t.Cleanup(func() { tr.stop() })
	return tr
}

// stop ends the traffic and returns all that was seen.
func (tr *traffic) stop() []sample {
	tr.stopped()
	tr.wg.Wait()
	return tr.samples
}

// count returns the number of requests with this status that began at or after from.
func (tr *traffic) count(status int, from time.Time) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	n := 0
	for _, s := range tr.samples {
		if s.status == status && !s.began.Before(from) {
			n++
		}
	}
	return n
}

// tally counts the samples by status; 0 is no answer.
func tally(samples []sample) map[int]int {
	byStatus := map[int]int{}
	for _, s := range samples {
		byStatus[s.status]++
	}
	return byStatus
}

// longest is the longest that a request took, until its answer or its error.
func longest(samples []sample) time.Duration {
	var most time.Duration
	for _, s := range samples {
		most = max(most, s.took)
	}
	return most
}
