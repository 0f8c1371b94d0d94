//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/redistest"
)

// connections is how many connections of sidecars the server has.
func connections(t *testing.T, server *redistest.Server) int {
	t.Helper()
	return strings.Count(fmt.Sprint(redistest.Do(t, server, "client", "list")), " name=weir ")
}

// docs/sizing.md says how many connections a process holds to Redis: idle, with published rules, and under load.
func TestConnections(t *testing.T) {
	text, err := os.ReadFile("../docs/sizing.md")
	if err != nil {
		t.Fatal(err)
	}
	said := func(row string) int {
		t.Helper()
		m := regexp.MustCompile(`(?m)^\| ` + row + ` \| (\d+) \|`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("docs/sizing.md has no row %q", row)
		}
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	server := redistest.Start(t)
	rules := "domain: shop\ndescriptors: [{key: day, rate_limit: {requests_per_unit: 1000000, unit: day}}]\n"
	idle := said("rules in files, idle")
	files := startSidecar(t, ruleFile(t, rules), "--store", server.URL())
	await(t, 20*time.Second, fmt.Sprintf("%d connections", idle), func() bool { return connections(t, server) == idle })

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	most := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		flood(ctx, t, []*sidecar{files}, "day", 64, 0)
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(10 * time.Millisecond):
			most = max(most, connections(t, server))
		}
	}
	t.Logf("%d connections under load", most)
	if bound := said("rules in files, under load, at most"); most > bound {
		t.Errorf("%d connections under load, docs/sizing.md says at most %d", most, bound)
	}
	files.Terminate(20 * time.Second)
	await(t, 20*time.Second, "no connection", func() bool { return connections(t, server) == 0 })

	if out, err := publish(t, server, rules); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	published := said(`published rules \(.*\), idle`)
	startSidecar(t, "store", "--store", server.URL())
	await(t, 20*time.Second, fmt.Sprintf("%d connections", published), func() bool { return connections(t, server) == published })
}
