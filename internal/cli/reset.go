package cli

import (
	"context"
	"fmt"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

type resetCmd struct {
	Descriptor string `arg:"" name:"key=value,..." help:"The descriptor's entries, in Envoy's order; \\, is a comma in a value."`
	Domain     string `required:"" placeholder:"NAME" help:"Domain of Envoy's rate limit filter."`

	remoteFlags
}

func (*resetCmd) Help() string {
	return `Deletes the counters of a descriptor, so that its limits are fully available again in every replica. With
cached denials or leases, that takes up to a second. The process logs the reset. On the machine of the process, the
command needs no token.

Exit codes: 0 deleted (even if there was no counter), 1 not deleted, 2 the command line is wrong.

Examples:

    weir reset --domain shop client=ann
    weir reset --domain shop client=ann --token-file token`
}

func (c *resetCmd) Run(ctx context.Context, io streams) error {
	if _, err := descriptors.ParseEntries(c.Descriptor); err != nil {
		return usage(err)
	}
	target := adminapi.ResetRequest{Domain: c.Domain, Descriptor: c.Descriptor}
	return ask(&c.remoteFlags, io, func(to *adminapi.Client, done *adminapi.ResetResult) error {
		return to.Post(ctx, "/keys/reset", target, done)
	}, func(io streams, done *adminapi.ResetResult) {
		for _, counter := range done.Counters {
			was := ""
			if !counter.Existed {
				was = " (it was empty)"
			}
			fmt.Fprintf(io.out, "reset %s%s\n", counter.Key, was)
		}
	})
}
