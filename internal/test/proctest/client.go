package proctest

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Client sends requests to a server, such as a listener of an Envoy.
type Client struct {
	HTTP *http.Client
	URL  string // http://host:port
}

// Response is a response to a Client.
type Response struct {
	Status int
	Header http.Header
	Body   string
}

// Get sends a request for a path, with headers as alternating names and values. An error fails the test.
func (c *Client) Get(tb testing.TB, path string, headers ...string) Response {
	tb.Helper()
	r, err := c.Try(tb, path, headers...)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// Try is Get that returns the error.
func (c *Client) Try(tb testing.TB, path string, headers ...string) (Response, error) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, c.URL+path, http.NoBody)
	if err != nil {
		return Response{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return c.Do(req)
}

// Do sends a request and reads the whole response.
func (c *Client) Do(req *http.Request) (Response, error) {
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return Response{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	body, err := io.ReadAll(resp.Body)
	return Response{resp.StatusCode, resp.Header, string(body)}, err
}

var limitName = regexp.MustCompile(`;name="[^"]*"`)

// RateLimit returns a response's X-RateLimit-Limit, without names and with sorted windows, and X-RateLimit-Remaining,
// each after a space; or "".
func RateLimit(h http.Header) string {
	windows := strings.Split(limitName.ReplaceAllString(h.Get("X-Ratelimit-Limit"), ""), ", ")
	slices.Sort(windows[1:])
	return strings.TrimRight(" "+strings.Join(windows, ", ")+" "+h.Get("X-Ratelimit-Remaining"), " ")
}
