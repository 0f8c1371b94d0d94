//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// prometheus is a running Prometheus.
type prometheus struct {
	addr string // host:port
}

// startPrometheus runs Prometheus with the configuration file until the test ends, and returns when it is ready.
func startPrometheus(tb testing.TB, config string) *prometheus {
	tb.Helper()
	s := &prometheus{addr: proctest.FreeAddr(tb)}
	cmd := exec.Command(proctest.Program(tb, "prometheus"), "--config.file", config, "--web.listen-address", s.addr,
		"--storage.tsdb.path", tb.TempDir(), "--log.level", "warn")
	proctest.Start(tb, "prometheus", cmd).Await(proctest.Patience, func() error {
		_, err := s.get("/-/ready", nil)
		return err
	})
	return s
}

// series is one of the answer to a query.
type series struct {
	Labels map[string]string
	Value  float64
}

// query evaluates an expression at the present time.
func (s *prometheus) query(expr string) ([]series, error) {
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
	var all []series
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, series{r.Metric, value})
	}
	return all, nil
}

// alerts returns the state of each alert that is pending or firing, by name.
func (s *prometheus) alerts() (map[string]string, error) {
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

func (s *prometheus) get(path string, query url.Values) ([]byte, error) {
	u := url.URL{Scheme: "http", Host: s.addr, Path: path, RawQuery: query.Encode()}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return launch.Get(ctx, u.String())
}
