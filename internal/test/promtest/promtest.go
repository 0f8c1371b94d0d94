// Package promtest runs a real Prometheus for a test.
package promtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// patience is how long Prometheus may take to start.
const patience = time.Minute

// Server is a running Prometheus.
type Server struct {
	tb   testing.TB
	addr string
}

// Start runs Prometheus with the configuration file until the test ends, and returns when it is ready.
func Start(tb testing.TB, config string) *Server {
	tb.Helper()
	s := &Server{tb: tb, addr: proctest.FreeAddr(tb)}
	cmd := exec.Command(proctest.Program(tb, "prometheus"), "--config.file", config, "--web.listen-address", s.addr,
		"--storage.tsdb.path", tb.TempDir(), "--log.level", "warn")
	proctest.Start(tb, "prometheus", cmd).Await(patience, func() error {
		_, err := s.get("/-/ready", nil)
		return err
	})
	return s
}

// Value is one series of the answer to a query.
type Value struct {
	Labels map[string]string
	Value  float64
}

// Query evaluates an expression at the present time.
func (s *Server) Query(expr string) ([]Value, error) {
	body, err := s.get("/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", body, err)
	}
	var all []Value
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, Value{r.Metric, value})
	}
	return all, nil
}

// Alerts returns the state of each alert that is pending or firing, by name.
func (s *Server) Alerts() (map[string]string, error) {
	body, err := s.get("/api/v1/alerts", nil)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
	}
	err = json.Unmarshal(body, &answer)
	states := map[string]string{}
	for _, a := range answer.Data.Alerts {
		states[a.Labels["alertname"]] = a.State
	}
	return states, err
}

func (s *Server) get(path string, query url.Values) ([]byte, error) {
	u := url.URL{Scheme: "http", Host: s.addr, Path: path, RawQuery: query.Encode()}
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(u.String())
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, res.Status, body)
	}
	return body, errors.Join(err, res.Body.Close())
}
