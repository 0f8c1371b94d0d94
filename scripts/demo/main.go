// Command demo shows Weir at work. It starts Weir and a real Envoy in front of it, sends requests that are admitted and
// limited, edits a rule, and shows the new limit take effect. Then the programs run until Ctrl-C. With DEMO_EXIT=1 the
// demo ends, with exit code 1 if a result differed from the rules.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// Addresses in examples/envoy.yaml and Weir's defaults.
const (
	front    = "http://127.0.0.1:10000"
	admin    = "http://127.0.0.1:9901"
	grpcAddr = "127.0.0.1:8081"
	httpAddr = "127.0.0.1:8080"
	upstream = "127.0.0.1:10001"
)

// toStart and toStop are the times that a program may take to start and stop.
const toStart, toStop = 30 * time.Second, 15 * time.Second

func main() {
	// SIGHUP comes when the terminal is closed, SIGPIPE when the reader of the output exits. Neither may end the demo
	// before its programs have ended.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	err := run(ctx, os.Stdout, os.Getenv("DEMO_EXIT") == "1")
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run runs the demo in the project's root directory. It removes its files.
func run(ctx context.Context, out io.Writer, exit bool) (err error) {
	if err := free(ctx, grpcAddr, httpAddr, "0.0.0.0:10000", upstream, "127.0.0.1:9901"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-demo")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	rules := filepath.Join(dir, "rules") // a copy, because the demo edits it
	if err := os.CopyFS(rules, os.DirFS("examples/rules")); err != nil {
		return err
	}

	sidecar, err := start(ctx, "sidecar", "http://"+httpAddr+"/readyz", "bin/weir", "serve", "--rules", rules,
		"--store", "memory", "--grpc-addr", grpcAddr, "--http-addr", httpAddr)
	if err != nil {
		return err
	}
	defer sidecar.Stop(toStop)
	binary, err := launch.FindEnvoy()
	if err != nil {
		return err
	}
	envoy, err := start(ctx, "envoy", admin+"/ready", binary, "--config-path", "examples/envoy.yaml",
		"--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
	if err != nil {
		return err
	}
	defer envoy.Stop(toStop)

	if err := show(ctx, out, rules); err != nil {
		return fmt.Errorf("%w\n\nWeir said:\n%s", err, sidecar.Output())
	}
	fmt.Fprintln(out, "\nAll requests were decided as the rules say.")
	if exit {
		fmt.Fprintln(out, "The programs end now. Without DEMO_EXIT=1 they keep running, for requests of your own.")
		return nil
	}
	where(out, rules)
	fmt.Fprintln(out, "\nCtrl-C ends the demo.")
	select {
	case <-ctx.Done():
		return nil
	case <-sidecar.Exited():
		return sidecar.Died()
	case <-envoy.Exited():
		return envoy.Died()
	}
}

// start runs a program and returns when the URL responds.
func start(ctx context.Context, name, url, binary string, args ...string) (*launch.Process, error) {
	p, err := launch.Start(name, exec.Command(binary, args...)) //nolint:gosec,noctx // the demo's own; Stop ends it
	if err != nil {
		return nil, err
	}
	if err := p.Await(ctx, toStart, func(ctx context.Context) error { return launch.Ready(ctx, url) }); err != nil {
		p.Stop(toStop)
		return nil, err
	}
	return p, nil
}

// show plays the scenes, then edits a rule.
func show(ctx context.Context, out io.Writer, rules string) error {
	client := scene{
		title:  "Each client on a funnel of its own (clients.yaml): 10 at once, one more every 6 s",
		client: "127.0.0.1", path: "/", count: 13, pass: 10, refill: every(6 * time.Second),
	}
	began := time.Now()
	for _, s := range []scene{
		client,
		{
			title:  "Another client, another funnel",
			client: "127.0.0.2", path: "/", count: 2, pass: 2, refill: never,
		},
		{
			title: "An API key with two limits (api-keys.yaml): 6 a minute and 1000 a day. 8 may come at once, a burst, so " +
				"that more remain than the limit of 6",
			client: "127.0.0.1", path: "/api/items", apiKey: "alice", count: 10, pass: 8, refill: every(10 * time.Second),
		},
		{
			title:  "An API key of our own services (api-keys.yaml): unlimited",
			client: "127.0.0.1", path: "/api/items", apiKey: "internal-billing", count: 3, pass: 3, refill: never,
		},
		{
			title:  "Logins (login.yaml, as envoyproxy/ratelimit reads it): 5 in each minute of the clock",
			client: "127.0.0.1", path: "/login", count: 7, pass: 5, refill: eachMinute(5),
		},
	} {
		if err := s.play(ctx, out, time.Now()); err != nil {
			return err
		}
	}

	took, err := edit(ctx, filepath.Join(rules, "clients.yaml"), client)
	if err != nil {
		return err
	}
	fmt.Fprintf(out,
		"\nEdited clients.yaml: burst 10 -> 20. The limited client's next request passed %s after the edit.\n",
		took.Round(100*time.Microsecond))
	client.title = "The same client under the edited rule: 10 more at once, one of which just passed"
	client.count, client.pass = 12, 9
	return client.play(ctx, out, began)
}

// edit raises the clients' burst, and returns the time until a limited client's request passes.
func edit(ctx context.Context, file string, limited scene) (time.Duration, error) {
	before, err := os.ReadFile(file) //nolint:gosec // a file of the demo's own
	if err != nil {
		return 0, err
	}
	after := bytes.Replace(before, []byte("burst: 10"), []byte("burst: 20"), 1)
	if bytes.Equal(before, after) {
		return 0, fmt.Errorf("%s has no burst: 10 to edit", file)
	}
	// As editors do: rename a complete new file over the old one.
	if err := os.WriteFile(file+"~", after, 0o600); err != nil { //nolint:gosec // as above
		return 0, err
	}
	client := limited.httpClient()
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	edited := time.Now()
	if err := os.Rename(file+"~", file); err != nil {
		return 0, err
	}
	for {
		status, header, err := limited.send(ctx, client)
		if err != nil {
			return 0, fmt.Errorf("the edited rule has not taken effect: %w", err)
		}
		if status == http.StatusOK && !failedOpen(header) {
			return time.Since(edited), nil
		}
	}
}

func where(out io.Writer, rules string) {
	fmt.Fprintf(out, `What listens, and where:
  %-36s Envoy: curl -i it, with -H 'X-Api-Key: bob' at /api/items
  %-36s Envoy's admin page, /stats?filter=ratelimit
  %-36s Weir's dashboard; /rules /readyz /healthz
  %-36s Weir's gRPC
  %-36s the rule files: edit one and try again
`, front, admin, "http://"+httpAddr, grpcAddr, rules)
}

// free returns an error for each address that is in use.
func free(ctx context.Context, addrs ...string) error {
	var errs []error
	for _, addr := range addrs {
		var config net.ListenConfig
		ln, err := config.Listen(ctx, "tcp", addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("the demo needs %s, which something else uses: %w", addr, err))
			continue
		}
		if err := ln.Close(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
