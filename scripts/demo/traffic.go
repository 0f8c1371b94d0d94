package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// scene is a burst of equal requests, with the result that the rules give.
type scene struct {
	title  string
	client string // source address of the requests
	path   string
	apiKey string // or ""
	count  int    // number of requests
	pass   int    // number of requests that the rules admit at once
	// refill returns the number of further requests that may pass if the burst took from start to end, on a slow machine.
	refill func(start, end time.Time) int
}

// every returns a refill of one request per interval.
func every(interval time.Duration) func(start, end time.Time) int {
	return func(start, end time.Time) int { return int(end.Sub(start) / interval) }
}

// eachMinute returns a refill of n requests at each full minute.
func eachMinute(n int) func(start, end time.Time) int {
	return func(start, end time.Time) int {
		return n * int(end.Truncate(time.Minute).Sub(start.Truncate(time.Minute))/time.Minute)
	}
}

// never is a refill of no requests.
func never(time.Time, time.Time) int { return 0 }

// play sends the scene's requests, prints each response, and checks the number of admitted requests. The refill begins
// at start.
func (s scene) play(ctx context.Context, out io.Writer, start time.Time) error {
	fmt.Fprintf(out, "\n%s\n  %d requests from %s to %s\n", s.title, s.count, s.client, s.path)
	fmt.Fprintf(out, "  %3s  %-6s  %-29s  %-9s  %-5s  %s\n", "#", "status", "x-ratelimit-limit", "remaining", "reset",
		"retry-after")
	client := s.httpClient()
	defer client.CloseIdleConnections()
	passed, open := 0, 0
	for i := range s.count {
		status, header, err := s.send(ctx, client)
		if err != nil {
			return err
		}
		h := func(name string) string { return cmp.Or(header.Get(name), "-") }
		fmt.Fprintf(out, "  %3d  %-6d  %-29s  %-9s  %-5s  %s\n", i+1, status,
			h("X-Ratelimit-Limit"), h("X-Ratelimit-Remaining"), h("X-Ratelimit-Reset"), h("Retry-After"))
		switch status {
		case http.StatusOK:
			passed++
			if s.pass < s.count && failedOpen(header) {
				open++
			}
		case http.StatusTooManyRequests:
		default:
			return fmt.Errorf("%s: status %d, want 200 or 429", s.title, status)
		}
	}
	fmt.Fprintf(out, "  => %d passed, %d limited\n", passed, s.count-passed)
	if open > 0 {
		fmt.Fprintf(out, "     %d of them without a response from Weir: the machine is too busy for Envoy's timeout\n", open)
	}
	most := min(s.count, s.pass+open+s.refill(start, time.Now()))
	if passed < s.pass || passed > most {
		return fmt.Errorf("%s: %d passed, want %d to %d", s.title, passed, s.pass, most)
	}
	return nil
}

// failedOpen reports whether Envoy let a limited request pass because its call to Weir timed out.
func failedOpen(h http.Header) bool { return h.Get("X-Ratelimit-Limit") == "" }

// httpClient returns a client that sends from the scene's address. All of 127.0.0.0/8 is this machine.
func (s scene) httpClient() *http.Client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(s.client)}}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext}}
}

// send sends one request and returns the status and headers of the response.
func (s scene) send(ctx context.Context, client *http.Client) (int, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, front+s.path, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	if s.apiKey != "" {
		req.Header.Set("X-Api-Key", s.apiKey)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Header, err
}
