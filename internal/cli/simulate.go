package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/offline"
)

type simulateCmd struct {
	Rules    []string      `placeholder:"PATH" help:"Rule files, and directories of them; - for stdin."`
	Limit    string        `placeholder:"LIMIT" help:"Simulate this limit instead of rule files; LIMIT has the YAML fields of rate_limit in a rule file."`
	Traffic  string        `required:"" placeholder:"TRAFFIC" help:"constant:100/s, poisson:100/s, burst:50x10s or step:10/s,100/s@10s."`
	For      time.Duration `default:"30s" help:"How long the traffic lasts."`
	Duration time.Duration `default:"100ms" help:"Duration of each request, for concurrency limits and reservations; a request longer than a concurrency limit's lease counts until the lease ends."`
	Cost     int64         `placeholder:"HITS" help:"Cost of each request; a limit with a reservation learns it when the request ends. Default: 1, or the reservation's estimate."`
	Seed     uint64        `default:"1" help:"Seed of random traffic."`

	Output outputFlags `embed:""`
}

func (*simulateCmd) Help() string {
	return `Runs generated traffic through limits in virtual time. Every request goes to each limit separately; keys
of descriptors, shadow_mode and replaces are ignored. Windows begin with the traffic; calendar windows are the first
that begin in 2026, UTC. For recorded traffic, see weir diff --traffic.

Traffic: RATE is a number per s, m or h. burst:SIZExEVERY sends SIZE requests at once, every EVERY. A rate of step
holds from its @TIME on.

Columns: passed is the share of admitted requests; rate the requests per window; most/window the most requests
admitted in any window; bound the maximum of most/window with any traffic; lockout the longest time in which all
requests were denied. Delayed requests count when they pass. With --cost, rate, most/window and bound are hits, not
requests. For reservations, charged are the hits that starts and ends charge, and returned those that ends refund.

Exit codes: 0 simulated, 1 a rule is wrong, 2 the command line is wrong or a file cannot be read.

Examples:

    weir simulate --rules rules.yaml --traffic poisson:100/s
    weir simulate --limit 'algorithm: funnel, requests_per_unit: 10, unit: second, burst: 20' \
      --traffic burst:50x10s
    weir simulate --limit 'requests_per_unit: 10000, unit: minute, reservation: {estimate: 1000}' \
      --traffic poisson:1/s --cost 400 --duration 20s --for 5m
    weir simulate --limit 'requests_per_unit: 100, unit: minute' --traffic step:1/s,5/s@2m --for 5m`
}

// maxCost is the largest cost of a request that Envoy sends.
const maxCost = 1_000_000_000

func (c *simulateCmd) Run(ctx context.Context, io streams) error {
	traffic, err := c.parse()
	if err != nil {
		return usage(err)
	}
	set, err := c.rules(ctx, io)
	if err != nil {
		return err
	}
	limits := offline.Limits(set)
	if len(limits) == 0 {
		return errors.New("there is no limit to simulate; write one with requests_per_unit and unit")
	}
	arrivals, err := traffic.Arrivals(c.For, c.Seed)
	if err != nil {
		return usage(fmt.Errorf("--traffic: %w", err))
	}
	report, err := offline.Simulate(ctx, limits, arrivals, offline.SimulationOptions{
		Length: c.For, Duration: c.Duration, Cost: c.Cost,
	})
	if err != nil {
		return err
	}
	report.Rule = cmp.Or(c.Limit, strings.Join(c.Rules, ", "))
	report.Traffic, report.Seed = c.Traffic, c.Seed
	return c.Output.print(io, report, func() {
		fmt.Fprintf(io.out, "%s\n\n", report.Heading())
		_ = report.WriteTable(io.out)
		fmt.Fprintln(io.out)
		report.WriteCharts(io.out)
	})
}

// parse checks and parses the flags.
func (c *simulateCmd) parse() (*offline.Traffic, error) {
	var p problems
	traffic, err := offline.ParseTraffic(c.Traffic)
	p.check(err == nil, "--traffic: %w", err)
	p.check(c.For >= 10*time.Millisecond && c.For <= offline.MaxLength,
		"--for: must be between 10ms and %s (10 years), got %s", offline.MaxLength, c.For)
	p.check(c.Duration >= time.Microsecond && c.Duration <= offline.MaxLength,
		"--duration: must be between 1µs and %s (10 years), got %s", offline.MaxLength, c.Duration)
	p.check(c.Cost >= 0 && c.Cost <= maxCost, "--cost: must be between 1 and %d, got %d", int64(maxCost), c.Cost)
	return traffic, errors.Join(p...)
}

// rules compiles the rule files, or the limit of --limit, and prints their errors.
func (c *simulateCmd) rules(ctx context.Context, io streams) (*descriptors.Set, error) {
	if (c.Limit == "") == (len(c.Rules) == 0) {
		return nil, usage(errors.New("give rule files, --rules PATH, or a limit: --limit 'requests_per_unit: 10, " +
			"unit: second'"))
	}
	if c.Limit == "" {
		files, err := readRules(ctx, io, c.Rules...)
		if err != nil {
			return nil, err
		}
		return compileQuietly(io, files, "")
	}
	set, err := compileInline(c.Limit)
	if errs := (descriptors.Errors{}); errors.As(err, &errs) {
		fmt.Fprintf(io.err, "%s\n%s\n", errs, count(errs.Count(), "error"))
		err = errReported
	}
	return set, err
}

// compileInline compiles one limit. Errors have positions within its text.
func compileInline(limit string) (*descriptors.Set, error) {
	before, after := "{domain: inline, descriptors: [{key: rule, rate_limit: ", "}]}"
	if !strings.HasPrefix(strings.TrimSpace(limit), "{") {
		before, after = before+"{", "}"+after
	}
	set, err := rulefile.Compile([]rulefile.File{{Name: "--limit", Data: []byte(before + limit + after)}})
	if errs := (descriptors.Errors{}); errors.As(err, &errs) {
		for _, e := range errs {
			if e.Line == 1 {
				e.Column = min(max(1, e.Column-len(before)), len(limit))
			}
		}
	}
	return set, err
}
