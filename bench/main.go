// Command bench compares Weir with a gRPC server that does nothing and with envoyproxy/ratelimit, on the workloads of
// docs/performance.md; with -envoy through a real Envoy.
//
// All servers are separate processes, so that their CPU time can be measured; this process generates the load. The
// targets take turns in every round and are compared within a round, because the machine's speed changes over minutes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
)

// options are the command line options.
type options struct {
	settings
	workloads, targets string
	weir, out          string
	storeTimeout       time.Duration
	serveNoop          string
	envoy              bool
	module             string
	pgo                string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.workloads, "workloads", "w1,w2,w3,w4,w1c1", "what to ask: w1 to w4, hot (w1 with 100 keys), "+
		"rules (1,000 of them), each also with one request outstanding as w1c1")
	f.StringVar(&o.targets, "targets", "noop,memory,redis,leased", "what to start: "+strings.Join(specNames(), ", ")+
		". peer has only fixed windows: compare with -algorithm fixed_window")
	f.IntVar(&o.Rounds, "rounds", 3, "rounds, of which the medians are shown")
	f.DurationVar(&o.Duration, "duration", 3*time.Second, "of each target in each workload in each round")
	f.DurationVar(&o.WarmUp, "warmup", 500*time.Millisecond, "load before each measurement")
	f.IntVar(&o.Concurrency, "concurrency", 64, "requests outstanding")
	f.IntVar(&o.Connections, "connections", 4, "connections that share them")
	f.StringVar(&o.Algorithm, "algorithm", "funnel", "of Weir's limits")
	f.DurationVar(
		&o.storeTimeout,
		"store-timeout",
		time.Second,
		"of Weir's processes; with 20ms or less, as by default in production, a "+
			"lone request sends its own call to Redis, so write 20ms to measure w1c1",
	)
	f.StringVar(&o.weir, "weir", "", "binary to measure; by default ../cmd/weir is built")
	f.StringVar(&o.out, "out", "", "also write the results to this file")
	f.StringVar(&o.serveNoop, "serve-noop", "", "only serve the no-op server on this address")
	f.StringVar(&o.pgo, "pgo", "", "only profile Weir under the workloads, and write the profile to this file")
	f.BoolVar(&o.envoy, "envoy", false, "measure through a real Envoy: HTTP requests of w1")
	f.StringVar(&o.module, "module", "", "with -envoy, also measure Weir inside Envoy: the path of libweir.so, which "+
		"make module builds")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.Rounds < 1 || o.Duration <= 0 || o.WarmUp <= 0 || o.Connections < 1 || o.Concurrency < o.Connections {
		return nil, errors.New("rounds, durations and connections must be positive, concurrency not below connections")
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	switch {
	case err != nil:
		return err
	case o.serveNoop != "":
		return serveNoop(ctx, o.serveNoop)
	}
	debug.SetGCPercent(800) // the load generator has little garbage; its collection must not disturb the others
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	targets, err := o.start(ctx, dir)
	defer stopAll(targets)
	if err != nil {
		return err
	}
	if o.envoy {
		rows, err := o.throughEnvoy(ctx, dir, targets, stderr)
		if err != nil {
			return err
		}
		return o.write(o.envoyTables(rows), stdout)
	}
	b, err := newBench(o, targets, stderr)
	if err != nil {
		return err
	}
	if o.pgo != "" {
		return b.profile(ctx, dir, o.pgo)
	}
	if err := b.run(ctx); err != nil {
		return err
	}
	return o.write(b.markdown(), stdout)
}

// start starts the targets. On error it also returns the targets that it has started.
func (o *options) start(ctx context.Context, dir string) ([]*target, error) {
	s, err := o.starter(dir)
	if err != nil {
		return nil, err
	}
	var targets []*target
	for _, name := range list(o.targets) {
		t, err := s.start(ctx, name)
		if err != nil {
			return targets, err
		}
		targets = append(targets, t)
	}
	if len(targets) == 0 {
		return nil, errors.New("no targets")
	}
	return targets, nil
}

func stopAll(targets []*target) {
	for _, t := range targets {
		t.stop()
	}
}

func newBench(o *options, targets []*target, progress io.Writer) (*bench, error) {
	b := &bench{
		settings: o.settings, targets: targets, progress: progress,
		requests: map[*workload]*requests{}, samples: map[sampled][]sample{},
	}
	for _, name := range list(o.workloads) {
		s, err := parseScenario(name)
		if err != nil {
			return nil, err
		}
		b.scenarios = append(b.scenarios, s)
		if b.requests[s.w] != nil {
			continue
		}
		if b.requests[s.w], err = s.w.encode(); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// list splits a text at commas. An empty text gives an empty list.
func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

// write prints a result, and writes it to -out if that is set.
func (o *options) write(result string, stdout io.Writer) error {
	if _, err := io.WriteString(stdout, result); err != nil || o.out == "" {
		return err
	}
	return os.WriteFile(o.out, []byte(result), 0o644)
}
