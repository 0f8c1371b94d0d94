package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

type boostCmd struct {
	Add    boostAddCmd    `cmd:"" default:"withargs" help:"Multiply the limits of a rule or a key for a time."`
	List   boostListCmd   `cmd:"" help:"Show the boosts."`
	Remove boostRemoveCmd `cmd:"" help:"End a boost now."`
}

func (*boostCmd) Help() string {
	return `A boost multiplies the limits of a rule, or of one descriptor's counters, for a time. It ends at its end time
or with weir boost remove. With Redis it takes effect in every replica within a second. With --store memory it
belongs to one process and is lost when that process ends.

Examples:

    weir boost --domain shop --rule client --factor 2 --for 1h --reason 'sale, ticket 4711'
    weir boost --domain shop client=ann --factor 0.1 --for 15m --reason 'scraper'
    weir boost list
    weir boost remove k3v9qm2x7a`
}

type boostAddCmd struct {
	Descriptor string        `arg:"" optional:"" name:"key=value,..." help:"A descriptor's entries, in Envoy's order: only its counters; \\, is a comma in a value."`
	Domain     string        `required:"" placeholder:"NAME" help:"Domain of Envoy's rate limit filter."`
	Rule       string        `placeholder:"PATH" help:"Path of a rule, as GET /rules and weir get show it: 'api_key > path=/checkout*'."`
	Factor     float64       `required:"" placeholder:"N" help:"Multiplier of requests_per_unit and burst: 2 doubles, 0.5 halves. Results are rounded down."`
	For        time.Duration `required:"" placeholder:"1h" help:"How long the boost lasts, at most 7d: 90m, 1d12h, 1w."`
	Reason     string        `required:"" placeholder:"TEXT" help:"The reason, shown in the log and in weir boost list."`
	Author     string        `env:"WEIR_AUTHOR" placeholder:"NAME" help:"The author; $USER@host by default."`

	remoteFlags
}

func (*boostAddCmd) Help() string {
	return `You may leave out the word add.

Hits so far still count, as after an edit of the rule: a window counts on under the new number; a funnel (leaky
bucket) or token bucket keeps its level and drains at the new rate (weir reset empties it). Of two boosts for one
rule the newer one applies; a boost for a key applies before one for its rule. A boost stays after a reload, by the
rule's path. Weir does not boost limits that a request brings along. With --http-token-file it requires the token.

Exit codes: 0 the boost is in force, 1 it was refused or no answer, 2 the command line is wrong.

Examples:

    weir boost --domain shop --rule client --factor 2 --for 1h --reason 'sale, ticket 4711'
    weir boost --domain shop client=ann --factor 0.1 --for 15m --reason 'scraper' --token-file token`
}

func (c *boostAddCmd) Run(ctx context.Context, io streams) error {
	if (c.Rule == "") == (c.Descriptor == "") {
		return usage(errors.New("give one of --rule PATH and a descriptor, key=value,key=value"))
	}
	in := adminapi.BoostRequest{
		Domain: c.Domain, Rule: c.Rule, Descriptor: c.Descriptor, Factor: c.Factor, For: c.For.String(),
		Reason: c.Reason, Author: cmp.Or(c.Author, defaultAuthor()),
	}
	return ask(&c.remoteFlags, io, func(to *adminapi.Client, made *adminapi.BoostStatus) error {
		return to.Post(ctx, "/boosts", in, made)
	}, printBoost)
}

type boostListCmd struct {
	remoteFlags
}

func (*boostListCmd) Help() string {
	return `Shows the boosts that have not ended, oldest first, and their effect on the rules of the process that
answers.

Exit codes: 0 shown, even if there are none; 1 no answer; 2 the command line is wrong.

Examples:

    weir boost list
    weir boost list --json`
}

func (c *boostListCmd) Run(ctx context.Context, io streams) error {
	return ask(&c.remoteFlags, io, func(to *adminapi.Client, list *adminapi.BoostList) error {
		return to.Get(ctx, "/boosts", nil, list)
	}, func(io streams, list *adminapi.BoostList) {
		if list.Error != "" {
			fmt.Fprintf(io.err, "warning: there may be others: %s\n", list.Error)
		}
		for i := range list.Boosts {
			printBoost(io, &list.Boosts[i])
		}
		if len(list.Boosts) == 0 {
			fmt.Fprintln(io.out, "no boosts")
		}
	})
}

type boostRemoveCmd struct {
	ID string `arg:"" name:"id" help:"Id of the boost, as weir boost list shows it."`

	remoteFlags
}

func (*boostRemoveCmd) Help() string {
	return `Ends a boost in every replica on the same Redis. Hits that it admitted still count.

Exit codes: 0 ended, 1 there is no such boost or no answer, 2 the command line is wrong.

Example:

    weir boost remove k3v9qm2x7a`
}

func (c *boostRemoveCmd) Run(ctx context.Context, io streams) error {
	if c.ID == "" || url.PathEscape(c.ID) != c.ID {
		return usage(fmt.Errorf("%q is no boost's id; weir boost list shows them", c.ID))
	}
	return ask(&c.remoteFlags, io, func(to *adminapi.Client, removed *adminapi.Boost) error {
		return to.Delete(ctx, "/boosts/"+c.ID, removed)
	}, func(io streams, removed *adminapi.Boost) {
		fmt.Fprintf(io.out, "removed %s: %s\n", removed.ID, boostLine(removed))
	})
}

func printBoost(io streams, s *adminapi.BoostStatus) {
	fmt.Fprintf(io.out, "%s  %s\n", s.ID, boostLine(&s.Boost))
	for _, l := range s.Limits {
		fmt.Fprintf(io.out, "  %s, %d per %s instead of %d\n", limitName(l.Limit, l.Algorithm),
			l.Boosted, l.Window, l.RequestsPerUnit)
	}
	for _, key := range s.Keys {
		fmt.Fprintf(io.out, "  only %s\n", printable(key))
	}
	switch {
	case !s.InForce:
		fmt.Fprintf(io.out, "  not in force: %s\n", s.Problem)
	case s.Problem != "":
		fmt.Fprintf(io.out, "  but: %s\n", s.Problem)
	}
}

func boostLine(b *adminapi.Boost) string {
	return fmt.Sprintf("x %g on domain %s, rule %s, until %s, by %s: %s",
		b.Factor, printable(b.Domain), printable(b.Rule), b.ExpiresAt.Format(time.RFC3339),
		printable(b.Author), printable(b.Reason))
}
