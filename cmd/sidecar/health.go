package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
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
