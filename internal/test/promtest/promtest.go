// Package promtest finds and runs Prometheus and its tools for tests.
package promtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// patience is how long Prometheus may take to start.
const patience = 30 * time.Second

// Tool is the path of prometheus, promtool or statsd_exporter. Under -short it skips the test; where there is none it
// fails it.
func Tool(tb testing.TB, name string) string {
	tb.Helper()
	if testing.Short() {
		tb.Skipf("needs %s: left out by -short", name)
	}
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		for _, in := range []string{"prometheus/usr/bin", "bin"} {
			path := filepath.Join(dir, ".tools", in, name)
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Fatalf("there is no %s in .tools or PATH: make tools gets it", name)
	}
	return path
}

// Server is a running Prometheus.
type Server struct {
	tb   testing.TB
	addr string
}

// Start runs Prometheus with the configuration file until the test ends, and returns when it is ready.
func Start(tb testing.TB, config string) *Server {
	tb.Helper()
	s := &Server{tb: tb, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(proctest.FreePort(tb)))}
	cmd := exec.Command(Tool(tb, "prometheus"), "--config.file", config, "--web.listen-address", s.addr,
		"--storage.tsdb.path", tb.TempDir(), "--log.level", "warn")
	proctest.Start(tb, "prometheus", cmd).Await(patience, func() error {
		_, err := s.get("/-/ready", nil)
		return err
	})
	return s
}

// Value is one series of a query's answer.
type Value struct {
	Labels map[string]string
	Value  float64
}

// Query evaluates the expression now.
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

// Alerts are the states of the alerts that are pending or firing, by name.
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
