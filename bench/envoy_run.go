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

// envoySample is one front under one number of outstanding requests in one round. CPU time is of a request.
type envoySample struct {
	ReqPerSec float64 `json:"req_per_s"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	Envoy     float64 `json:"envoy_cpu_us"`
	Server    float64 `json:"server_cpu_us"`
	Redis     float64 `json:"redis_cpu_us"`
	RSS       float64 `json:"envoy_rss_mb"` // after the load
	Others    float64 `json:"others_cpu"`   // share of all CPUs that programs of others took
	// To the front without a filter in the same round:
	AddedP50 float64 `json:"added_p50_us"`
	AddedCPU float64 `json:"added_envoy_cpu_us"` // what asking costs Envoy itself
}

// compareWith sets what the sample has more than one of the front without a filter.
func (s *envoySample) compareWith(none *envoySample) {
	s.AddedP50, s.AddedCPU = s.P50-none.P50, s.Envoy-none.Envoy
}

// envoyRow is the medians of a front.
type envoyRow struct {
	Concurrency int    `json:"concurrency"`
	Front       string `json:"front"`
	envoySample
	Rounds []envoySample `json:"rounds"`
}

// envoyReport is what is written as JSON.
type envoyReport struct {
	Measured string     `json:"measured"`
	Machine  machine    `json:"machine"`
	Settings settings   `json:"settings"`
	Rows     []envoyRow `json:"rows"`
}

// throughEnvoy measures HTTP requests through an Envoy without the filter and with each target behind it.
func (o *options) throughEnvoy(ctx context.Context, dir string, targets []*target, stdout, stderr io.Writer) error {
	w, err := workloadNamed(nameClosed)
	if err != nil {
		return err
	}
	var config net.ListenConfig
	upstream, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer upstream.Close() //nolint:errcheck // nothing is under way
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
			return err
		}
		fronts = append(fronts, more...)
	}
	for _, f := range fronts {
		if err := f.start(ctx, dir, upstream.Addr().String()); err != nil {
			return err
		}
		defer f.Stop(patience)
	}
	for _, t := range targets {
		if t.alwaysOK {
			continue
		}
		if err := probe(ctx, t.addr, w, 0); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	rows, err := o.envoyRounds(ctx, fronts, httpRequests(w.keys), w, stderr)
	if err != nil {
		return err
	}
	for _, f := range fronts {
		if f.check == nil {
			continue
		}
		if err := f.check(ctx); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	r := &envoyReport{Measured: time.Now().Format(time.DateOnly), Machine: thisMachine(), Settings: o.settings, Rows: rows}
	if err := o.write(r, r.markdown, stdout); err != nil || !o.doc {
		return err
	}
	var text strings.Builder
	r.markdown(&text)
	return replaceBetween(growthDoc, "envoy", text.String())
}

// envoyRounds measures all fronts in turn, with all outstanding requests and with one.
func (o *options) envoyRounds(
	ctx context.Context, fronts []*front, requests [][]byte, w *workload, progress io.Writer,
) ([]envoyRow, error) {
	var rows []envoyRow
	for _, n := range []int{o.Concurrency, 1} {
		for _, f := range fronts {
			rows = append(rows, envoyRow{Concurrency: n, Front: f.name})
		}
	}
	for round := range o.Rounds {
		for first := 0; first < len(rows); first += len(fronts) {
			group := rows[first : first+len(fronts)]
			for i := range group {
				at := (i + round) % len(group)
				r := &group[at]
				s, err := o.measureFront(ctx, fronts[at], requests, w, r.Concurrency)
				if err != nil {
					return nil, fmt.Errorf("through Envoy, %s: %w\n%s%s", r.Front, err, fronts[at].service.lastWords(),
						fronts[at].Output())
				}
				r.Rounds = append(r.Rounds, s)
				fmt.Fprintf(progress, "round %d  c%-2d  %-13s %7.0f req/s  p50 %6.0f us  CPU %5.1f + %4.1f + %4.1f us  "+
					"others %2.0f %%\n", round+1, r.Concurrency, r.Front, s.ReqPerSec, s.P50, s.Envoy, s.Server, s.Redis,
					100*s.Others)
			}
			for i := range group { // the front without the filter is the first
				group[i].Rounds[round].compareWith(&group[0].Rounds[round])
			}
		}
	}
	for i := range rows {
		rows[i].envoySample = medians(rows[i].Rounds)
	}
	return rows, nil
}

func (o *options) measureFront(
	ctx context.Context, f *front, requests [][]byte, w *workload, atOnce int,
) (envoySample, error) {
	drive := func(d time.Duration) *tally {
		until := time.Now().Add(d)
		return inParallel(atOnce, func(i int, t *tally) {
			pick := w.picker(uint64(i)) //nolint:gosec // not negative
			f.ask(ctx, func() []byte { return requests[pick()] }, until, t)
		})
	}
	if err := drive(o.WarmUp).failed(); err != nil {
		return envoySample{}, err
	}
	var got *tally
	spent, err := during(ctx, f.usage, func() { got = drive(o.Duration) })
	if err != nil {
		return envoySample{}, err
	}
	if err := got.failed(); err != nil {
		return envoySample{}, err
	}
	rss, err := residentBytes(f.PID())
	if err != nil {
		return envoySample{}, err
	}
	s := newSample(got, &spent)
	return envoySample{
		ReqPerSec: s.ReqPerSec, P50: s.P50, P99: s.P99, Server: s.Server, Redis: s.Redis, Others: s.Others,
		Envoy: micros(spent.envoy) / float64(got.answered()), RSS: float64(rss) / 1e6,
	}, nil
}

// usage is what the front's Envoy and the service behind it have taken so far.
func (f *front) usage(ctx context.Context) (u usage, err error) {
	if u, err = f.service.usage(ctx); err == nil {
		u.envoy, err = cpuTime(f.PID())
	}
	return u, err
}

// residentBytes is the memory of a process that is in RAM, the pages of its program included.
func residentBytes(pid int) (int64, error) {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var size, resident int64 // pages
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		return 0, fmt.Errorf("/proc/%d/statm is %q: %w", pid, statm, err)
	}
	return resident * int64(os.Getpagesize()), nil
}

// markdown writes one table for each number of outstanding requests.
func (r *envoyReport) markdown(w io.Writer) {
	fmt.Fprint(w, paragraph(fmt.Sprintf("%s, %s. Medians of %d interleaved rounds of %s; w1; %s.", r.Measured, r.Machine,
		r.Settings.Rounds, r.Settings.Duration, r.Settings.Algorithm)))
	last := 0
	for _, row := range r.Rows {
		if row.Concurrency != last {
			last = row.Concurrency
			fmt.Fprintf(w, "\n%d outstanding:\n\n", last)
			fmt.Fprint(w, "| | req/s | p50 us | p99 us | added p50 us | CPU us: Envoy + service + Redis | of it Envoy, for "+
				"asking | RSS of Envoy, MB | others' CPU |\n|---|---|---|---|---|---|---|---|---|\n")
		}
		added := []string{"", ""}
		if row.Front != nameNone {
			added = []string{fmt.Sprintf("%.0f", row.AddedP50), fmt.Sprintf("%.1f", row.AddedCPU)}
		}
		fmt.Fprintf(w, "| %s | %.0f | %.0f | %.0f | %s | %.1f + %.1f + %.1f | %s | %.0f | %.0f %% |\n", frontTitle(row.Front),
			row.ReqPerSec, row.P50, row.P99, added[0], row.Envoy, row.Server, row.Redis, added[1], row.RSS, 100*row.Others)
	}
}

// frontTitle is a front's name for readers.
func frontTitle(name string) string {
	switch name {
	case nameNone:
		return "no filter"
	case nameNoop:
		return "no-op service"
	case namePeer:
		return "envoyproxy/ratelimit"
	case nameModuleMemory:
		return "Weir inside Envoy, memory"
	case nameModuleRedis:
		return "Weir inside Envoy, redis"
	default:
		return "Weir, " + name
	}
}
