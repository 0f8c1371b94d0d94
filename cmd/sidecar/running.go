package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// healthCmd is `weir health`.
type healthCmd struct {
	To     serverFlags `embed:""`
	Output outputFlags `embed:""`
	Live   bool        `help:"Only ask whether the process is alive: also while it has no rules, or its Redis is away."`
}

// Help is shown below the one line of it.
func (*healthCmd) Help() string {
	return `Asks /readyz of a running sidecar: are rules loaded, is the store reachable, is it not stopping? In the container of
serve no flag is needed, as it finds the address in WEIR_HTTP_ADDR, too. Kubernetes asks by itself (httpGet).

The exit code is 0 if it is ready, 1 if not or if nothing answers, 2 if the command line is wrong.

Examples:

    weir health
    HEALTHCHECK --interval=10s --timeout=3s CMD ["weir", "health", "--timeout", "2s"]
    weir health --live --server unix:/run/weir/http.sock`
}

// Run prints what the sidecar says of itself.
func (c *healthCmd) Run(ctx context.Context, io streams) error {
	client, err := c.To.client("weir health")
	if err != nil {
		return err
	}
	defer client.Close()
	path := "/readyz"
	if c.Live {
		path = "/healthz"
	}
	status, text, err := client.Text(ctx, path)
	if err != nil {
		return err
	}
	healthy := status == http.StatusOK
	if c.Output.json() {
		err = printJSON(io, map[string]any{"healthy": healthy, "status": status, "text": text})
	} else {
		for line := range strings.Lines(text) {
			fmt.Fprintln(io.out, printable(strings.TrimRight(line, "\n")))
		}
	}
	if !healthy {
		return errTold
	}
	return err
}

// reloadCmd is `weir reload`.
type reloadCmd struct {
	To     serverFlags `embed:""`
	Output outputFlags `embed:""`
}

// Help is shown below the one line of it.
func (*reloadCmd) Help() string {
	return `Has one running sidecar read its rule files at once, as SIGHUP does. It sees changes by itself within seconds: this is for
those who do not want to wait, or want to know what became of it. A sidecar with --http-token-file wants the token.

The exit code is 0 if the files as they are now are live, 1 if they were refused (the rules of before stay) or nothing
answers, 2 if the command line is wrong.

Examples:

    weir reload
    weir reload --token-file token --format json`
}

// maxShownErrors is how many errors of rule files are shown to people.
const maxShownErrors = 100

// Run prints what became of it.
func (c *reloadCmd) Run(ctx context.Context, io streams) error {
	client, err := c.To.client("weir reload")
	if err != nil {
		return err
	}
	defer client.Close()
	var answer json.RawMessage
	err = client.Post(ctx, "/reload", nil, &answer)
	refused := (*adminapi.StatusError)(nil)
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusUnprocessableEntity && json.Valid(refused.Body):
		answer = refused.Body
	case err != nil:
		return err
	}
	if c.Output.json() {
		if err := printJSON(io, answer); err != nil {
			return err
		}
	}
	var said adminapi.Reloaded
	if err := json.Unmarshal(answer, &said); err != nil {
		return err
	}
	if refused != nil {
		if !c.Output.json() {
			printErrors(io.err, said.Errors, len(said.Errors))
			fmt.Fprintln(io.err, "refused; the rules of before stay")
		}
		return errTold
	}
	if !c.Output.json() {
		fmt.Fprintf(io.out, "reloaded: rules %s are live since %s\n", reload.ShortHash(said.Hash), said.LoadedAt.Format(time.RFC3339))
	}
	return nil
}

// printErrors prints the errors of rule files, of which there are count.
func printErrors(w io.Writer, errs []string, count int) {
	for _, e := range errs[:min(len(errs), maxShownErrors)] {
		fmt.Fprintln(w, printable(e))
	}
	if more := count - maxShownErrors; more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
}

// statusCmd is `weir status`.
type statusCmd struct {
	To     serverFlags `embed:""`
	Output outputFlags `embed:""`
}

// Help is shown below the one line of it.
func (*statusCmd) Help() string {
	return `Shows of one running sidecar whether it is ready, what it is built from, what counters are kept in, which rules are live,
and what is wrong with newer ones.

The exit code is 0 if it answers, ready or not (weir health tells by its exit code), 1 if it does not, 2 if the
command line is wrong.

Examples:

    weir status
    weir status --server http://sidecar-3:8080 --format json`
}

// Run prints the status.
func (c *statusCmd) Run(ctx context.Context, io streams) error {
	client, err := c.To.client("weir status")
	if err != nil {
		return err
	}
	defer client.Close()
	var answer json.RawMessage
	if err := client.Get(ctx, "/status", nil, &answer); err != nil {
		return err
	}
	if c.Output.json() {
		return printJSON(io, answer)
	}
	var s adminapi.Status
	if err := json.Unmarshal(answer, &s); err != nil {
		return err
	}
	printStatus(io.out, &s)
	return nil
}

func printStatus(w io.Writer, s *adminapi.Status) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s %s\n", name, printable(fmt.Sprintf(format, args...)))
	}
	ready := "ready"
	if !s.Ready {
		ready = "not ready"
	}
	line("state", "%s", ready)
	for _, check := range s.Checks {
		if check.Error != "" {
			line("", "%s: %s", check.Name, check.Error)
		}
	}
	line("version", "%s (commit %s, %s)", s.Build.Version, s.Build.Commit, s.Build.Go)
	line("started", "%s, %s ago", s.StartedAt.Format(time.RFC3339), s.Now.Sub(s.StartedAt).Round(time.Second))
	line("store", "%s", s.Store)
	r := &s.Rules
	if r.Hash == "" {
		line("rules", "none are loaded")
	} else {
		line("rules", "%s, live since %s: %s, %s, %s", reload.ShortHash(r.Hash), r.LoadedAt.Format(time.RFC3339),
			count(r.Domains, "domain"), count(r.Rules, "rule"), count(r.Limits, "limit"))
	}
	if p := r.Published; p != nil {
		line("published", "version %d is live, %d is the newest", p.Version, p.Newest)
		if p.Error != "" {
			line("", "%s", p.Error)
		}
	}
	if len(r.Errors) > 0 {
		errs := max(r.ErrorCount, len(r.Errors)) // older servers send no count
		line("refused", "newer rules, at %s: %s", r.ErrorsAt.Format(time.RFC3339), count(errs, "error"))
		printErrors(w, r.Errors, errs)
	}
}
