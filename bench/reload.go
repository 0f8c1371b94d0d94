package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The rules to reload, and the load meanwhile.
const (
	reloadRules = 100_000
	reloadRate  = 2000 // requests per second
	reloadTime  = 5 * time.Second
	reloads     = 3 // within reloadTime
)

// reload measures the start with many rules, and response times during reloads.
func (o *options) reload(ctx context.Context, dir string, stdout io.Writer) error {
	w := &workload{name: "reload", keys: 10_000, descriptors: 1, rules: reloadRules}
	s, err := o.starter(dir)
	if err != nil {
		return err
	}
	s.rules = func(dir, fields string) error {
		return os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(w.ruleFile(fields)), 0o600)
	}
	began := time.Now()
	t, err := s.start(ctx, nameMemory)
	if err != nil {
		return err
	}
	defer t.stop()
	ready := time.Since(began)
	started, err := t.usage(ctx)
	if err != nil {
		return err
	}
	r, err := w.encode()
	if err != nil {
		return err
	}
	l, err := dial(t.addr, w, r, o.Connections)
	if err != nil {
		return err
	}
	defer l.close()
	l.closed(ctx, o.WarmUp, o.Concurrency)
	calm, err := underLoad(ctx, l, t)
	if err != nil {
		return err
	}
	rules := filepath.Join(dir, "rules-memory", "rules.yaml")
	edited, err := editions(rules, dir)
	if err != nil {
		return err
	}
	slowest := make(chan any, 1) // time.Duration or error
	go func() { slowest <- editOften(ctx, t.addr, w, rules, edited) }()
	busy, err := underLoad(ctx, l, t)
	if err != nil {
		return err
	}
	took, ok := (<-slowest).(time.Duration)
	if !ok {
		return fmt.Errorf("the edited rules did not come into force within %s", patience)
	}
	_, err = fmt.Fprintf(stdout, `%s.
Start with %d rules: ready after %.2f s (process start, reading, compiling, the first health check), %.2f s of CPU time.
Reload of them under %d requests a second, %d times in %s: from the edit to the first answer by the new rules at most
%.2f s (50 ms of it the wait for the file to be whole), %.2f s of CPU time for each. Answers meanwhile: %s;
in as long a time without: %s. Other programs took %.0f %% of the machine.
`, thisMachine(), reloadRules, ready.Seconds(), started.server.Seconds(), reloadRate, reloads, reloadTime,
		took.Seconds(), (busy.server-calm.server).Seconds()/reloads, busy, calm, 100*max(busy.others(), calm.others()))
	return err
}

// answers are the responses to a load of a fixed rate, with the resources used.
type answers struct {
	*tally
	usage
}

func (a answers) String() string {
	ms := func(q float64) float64 { return micros(a.latency.quantile(q)) / 1000 }
	return fmt.Sprintf("p99 %.2f ms, p99.9 %.2f ms, longest %.2f ms", ms(0.99), ms(0.999), ms(1))
}

func underLoad(ctx context.Context, l *load, t *target) (a answers, err error) {
	a.usage, err = during(ctx, t.usage, func() { a.tally = l.open(ctx, reloadTime, reloadRate, openWorkers) })
	if err != nil {
		return a, err
	}
	return a, a.failed()
}

// editions writes files with other limits in all rules to dir: never-1 in the first, never-2 in the second. It runs
// before the load, because both use this process.
func editions(path, dir string) (paths []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for i := range reloads {
		edited := strings.ReplaceAll(string(text), strconv.Itoa(never), strconv.Itoa(never-1-i))
		to := filepath.Join(dir, "edition-"+strconv.Itoa(i))
		if err := os.WriteFile(to, []byte(edited), 0o600); err != nil {
			return nil, err
		}
		paths = append(paths, to)
	}
	runtime.GC() // of this function, not during the load
	return paths, nil
}

// editOften replaces the rules by each edition, and returns the longest time until a response showed the new limit, or
// an error.
func editOften(ctx context.Context, addr string, w *workload, path string, edited []string) any {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // no request is in flight
	var slowest time.Duration
	for i := range edited {
		edit := time.Now()
		if err := os.Rename(edited[i], path); err != nil {
			return err
		}
		if err := inForce(ctx, conn, w, uint32(never-1-i)); err != nil {
			return err
		}
		slowest = max(slowest, time.Since(edit))
	}
	return slowest
}

// inForce sends requests until a response has the limit.
func inForce(ctx context.Context, conn *grpc.ClientConn, w *workload, limit uint32) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		res, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, w.request(0))
		if err != nil {
			return err
		}
		if s := res.GetStatuses(); len(s) == 1 && s[0].GetCurrentLimit().GetRequestsPerUnit() == limit {
			return nil
		}
		<-poll.C
	}
}
