package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// envoyRow has the results of a front with a number of outstanding requests.
type envoyRow struct {
	atOnce int
	front  *front
	rounds []sample
}

// throughEnvoy measures HTTP requests through an Envoy without the filter and through one per target.
func (o *options) throughEnvoy(
	ctx context.Context, dir string, targets []*target, progress io.Writer,
) ([]envoyRow, error) {
	w, err := workloadNamed("w1")
	if err != nil {
		return nil, err
	}
	var config net.ListenConfig
	upstream, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer upstream.Close() //nolint:errcheck // no request is in flight
	go serveUpstream(upstream)
	fronts := []*front{noFilter()}
	for _, t := range targets {
		fronts = append(fronts, asking(w.name, t))
	}
	if o.module != "" {
		more, err := o.startModules(ctx, dir, w)
		for _, f := range more {
			defer f.service.stop()
		}
		if err != nil {
			return nil, err
		}
		fronts = append(fronts, more...)
	}
	for _, f := range fronts {
		if err := f.start(ctx, dir, upstream.Addr().String()); err != nil {
			return nil, err
		}
		defer f.Stop(patience)
	}
	for _, t := range targets {
		if t.alwaysOK {
			continue
		}
		if err := probe(ctx, t.addr, w, 0); err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return o.envoyRounds(ctx, fronts, httpRequests(w.keys), w, progress)
}

// envoyRounds measures all fronts in turn, with all outstanding requests and with one.
func (o *options) envoyRounds(
	ctx context.Context, fronts []*front, requests [][]byte, w *workload, progress io.Writer,
) ([]envoyRow, error) {
	var rows []envoyRow
	for _, n := range []int{o.Concurrency, 1} {
		for _, f := range fronts {
			rows = append(rows, envoyRow{atOnce: n, front: f})
		}
	}
	for round := range o.Rounds {
		for i := range rows {
			of := i - i%len(fronts) // the first row with this number of outstanding requests
			r := &rows[of+(i+round)%len(fronts)]
			s, err := o.measureFront(ctx, r.front, requests, w, r.atOnce)
			if err != nil {
				return nil, fmt.Errorf("through Envoy, %s: %w\n%s%s", r.front.name, err, r.front.service.lastWords(),
					r.front.Output())
			}
			r.rounds = append(r.rounds, s)
			fmt.Fprintf(progress, "round %d  c%-2d  %-13s %7.0f req/s  p50 %6.0f us  CPU %5.1f + %4.1f + %4.1f us  "+
				"others %2.0f %%\n", round+1, r.atOnce, r.front.name, s.ReqPerSec, s.P50, s.Envoy, s.Server, s.Redis,
				100*s.Others)
		}
	}
	return rows, nil
}

func (o *options) measureFront(
	ctx context.Context, f *front, requests [][]byte, w *workload, atOnce int,
) (s sample, err error) {
	drive := func(d time.Duration) *tally {
		until := time.Now().Add(d)
		return inParallel(atOnce, func(i int, t *tally) {
			pick := w.picker(uint64(i)) //nolint:gosec // not negative
			f.ask(ctx, func() []byte { return requests[pick()] }, until, t)
		})
	}
	if err := drive(o.WarmUp).failed(); err != nil {
		return s, err
	}
	var got *tally
	spent, err := during(ctx, f.usage, func() { got = drive(o.Duration) })
	if err != nil {
		return s, err
	}
	if err := got.failed(); err != nil {
		return s, err
	}
	s = newSample(got, &spent)
	rss, err := residentBytes(f.PID())
	s.RSS = float64(rss) / 1e6
	return s, err
}

// usage returns the resources used so far by the front's Envoy and its service.
func (f *front) usage(ctx context.Context) (u usage, err error) {
	if u, err = f.service.usage(ctx); err == nil {
		u.envoy, err = cpuTime(f.PID())
	}
	return u, err
}

// residentBytes returns the resident memory of a process, including its program.
func residentBytes(pid int) (int64, error) {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var size, resident int64 // in pages
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		return 0, fmt.Errorf("/proc/%d/statm is %q: %w", pid, statm, err)
	}
	return resident * int64(os.Getpagesize()), nil
}

// envoyTables returns a Markdown table per number of outstanding requests.
func (o *options) envoyTables(rows []envoyRow) string {
	var w strings.Builder
	fmt.Fprintf(&w, "%s, %s. Medians of %d interleaved rounds of %s; w1; %s.\n", time.Now().Format(time.DateOnly),
		thisMachine(), o.Rounds, o.Duration, o.Algorithm)
	var none envoyRow // the front without the filter
	for _, row := range rows {
		if row.atOnce != none.atOnce {
			none = row
			fmt.Fprintf(&w, "\n%d outstanding:\n\n| | req/s | p50 us | p99 us | added p50 us | CPU us: Envoy + service + "+
				"Redis | of it Envoy, for asking | RSS of Envoy, MB | others' CPU |\n|---|---|---|---|---|---|---|---|---|\n",
				row.atOnce)
		}
		s := medians(row.rounds)
		fmt.Fprintf(&w, "| %s | %.0f | %.0f | %.0f | %s | %.1f + %.1f + %.1f | %s | %.0f | %.0f %% |\n", row.front.name,
			s.ReqPerSec, s.P50, s.P99,
			compared("%.0f", row.rounds, none.rounds, func(s, none sample) float64 { return s.P50 - none.P50 }),
			s.Envoy, s.Server, s.Redis,
			compared("%.1f", row.rounds, none.rounds, func(s, none sample) float64 { return s.Envoy - none.Envoy }),
			s.RSS, 100*s.Others)
	}
	return w.String()
}
