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

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// connections returns the number of connections from processes to the server.
func connections(t *testing.T, server *redistest.Server) int {
	t.Helper()
	list := fmt.Sprint(redistest.Do(t, server, "client", "list"))
	return strings.Count(list, " cmd=") - strings.Count(list, " cmd=client") // the one that asks
}

// docs/operate/sizing.md says how many connections a process holds to Redis: idle, with published rules, under load.
func TestConnections(t *testing.T) {
	text, err := os.ReadFile("../docs/operate/sizing.md")
	if err != nil {
		t.Fatal(err)
	}
	said := func(row string) (usual, most int) {
		t.Helper()
		m := regexp.MustCompile(`(?m)^\| ` + row + ` \| (\d+)(?: to \d+)? \| (\d+) \|$`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("docs/operate/sizing.md has no row %q", row)
		}
		usual, _ = strconv.Atoi(string(m[1]))
		most, _ = strconv.Atoi(string(m[2]))
		return usual, most
	}
	server := redistest.Start(t)
	rules := "domain: shop\ndescriptors: [{key: day, rate_limit: {requests_per_unit: 1000000, unit: day}}]\n"
	idle := func() {
		t.Helper()
		usual, most := said("idle")
		proctest.Eventually(t, fmt.Sprintf("at %d connections", usual),
			func() bool { return connections(t, server) >= usual })
		if n := connections(t, server); n > most {
			t.Errorf("%d connections while idle, docs/operate/sizing.md says at most %d", n, most)
		}
	}

	files := startWeir(t, ruleFile(t, rules), "--store", server.URL())
	idle()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		flood(ctx, t, []*weir{files}, "day", 64, 0)
	}()
	busiest, enough := 0, time.Now().Add(casetest.Pick(time.Second, 2*time.Second))
	usual, most := said("under load")
	for ctx.Err() == nil && (time.Now().Before(enough) || busiest < usual-2) {
		<-time.After(10 * time.Millisecond)
		busiest = max(busiest, connections(t, server))
	}
	cancel()
	<-done
	t.Logf("%d connections under load", busiest)
	if busiest < usual-2 || busiest > most {
		t.Errorf("%d connections under load, docs/operate/sizing.md says %d to %d", busiest, usual, most)
	}
	files.Terminate(20 * time.Second)
	proctest.Eventually(t, "free of connections", func() bool { return connections(t, server) == 0 })

	if out, err := publish(t, server, rules); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	startWeir(t, "store", "--store", server.URL())
	idle()
}
