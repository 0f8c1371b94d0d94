package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

type reloadCmd struct {
	remoteFlags
}

func (*reloadCmd) Help() string {
	return `Reloads rule files at once, as SIGHUP does, and shows the result. Without this command, Weir notices changes
within seconds. On the machine of the process, the command needs no token.

Exit codes: 0 the current files are in force, 1 refused (the old rules stay in force) or no response, 2 the
command line is wrong.

Examples:

    weir reload
    weir reload --token-file token --format json`
}

// maxShownErrors is the maximum number of errors of rule files that text output shows.
const maxShownErrors = 100

// Run prints the result of the reload.
func (c *reloadCmd) Run(ctx context.Context, io streams) error {
	isRefused := false
	err := ask(&c.remoteFlags, io, func(to *adminapi.Client, result *adminapi.Reloaded) error {
		err := to.Post(ctx, "/reload", nil, result)
		refusal, ok := errors.AsType[*adminapi.StatusError](err)
		isRefused = ok && refusal.Status == http.StatusUnprocessableEntity && json.Unmarshal(refusal.Body, result) == nil
		if isRefused {
			return nil
		}
		return err
	}, func(io streams, result *adminapi.Reloaded) {
		if isRefused {
			printErrors(io.err, result.Errors, len(result.Errors))
			fmt.Fprintln(io.err, "refused; the old rules stay in force")
			return
		}
		fmt.Fprintf(io.out, "reloaded: rules %s, in force since %s\n", reload.ShortHash(result.Hash),
			result.LoadedAt.Format(time.RFC3339))
	})
	if err == nil && isRefused {
		return errReported
	}
	return err
}

// printErrors prints the first of count errors of rule files.
func printErrors(w io.Writer, errs []string, count int) {
	for _, e := range errs[:min(len(errs), maxShownErrors)] {
		fmt.Fprintln(w, words.Line(e))
	}
	if more := count - maxShownErrors; more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
}
