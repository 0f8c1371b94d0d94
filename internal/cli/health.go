package cli

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

type healthCmd struct {
	remoteFlags

	Live bool `help:"Check only that the process is alive."`
}

func (*healthCmd) Help() string {
	return `Ready means that rules are loaded, the store is reachable, and the process is not stopping. In the
container of weir serve, weir health needs no flag. In Kubernetes, use httpGet.

Exit codes: 0 ready, 1 not ready or no response, 2 the command line is wrong.

Examples:

    weir health
    HEALTHCHECK --interval=10s --timeout=3s CMD ["weir", "health", "--timeout", "2s"]
    weir health --live --server unix:/run/weir/http.sock`
}

// Run prints the response of /readyz.
func (c *healthCmd) Run(ctx context.Context, io streams) error {
	client, err := connect(c.To) //nolint:contextcheck // it connects only to a socket of this machine
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
	answer := map[string]any{"healthy": healthy, "status": status, "text": text}
	err = c.Output.print(io, answer, func() { fmt.Fprintln(io.out, strings.TrimSuffix(text, "\n")) })
	if !healthy {
		return errReported
	}
	return err
}
