package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"
)

// envoySample is one front under one number of outstanding requests in one round.
type envoySample struct {
	ReqPerSec float64 `json:"req_per_s"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	Envoy     float64 `json:"envoy_cpu_us"` // a request, as the next two
	Server    float64 `json:"server_cpu_us"`
	Redis     float64 `json:"redis_cpu_us"`
	Added     float64 `json:"added_p50_us"` // to p50 without the filter in the same round
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
	p, err := startEnvoy(ctx, dir, w, targets, upstream.Addr().String())
	if err != nil {
		return err
	}
	defer p.Stop(patience)
	for _, t := range targets {
		if t.alwaysOK {
			continue
		}
		if err := probe(ctx, t.addr, w, 0); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	rows, err := o.envoyRounds(ctx, p, httpRequests(w.keys), w, stderr)
	if err != nil {
		return err
	}
	r := &envoyReport{Machine: thisMachine(), Settings: o.settings, Rows: rows}
	return o.write(r, r.markdown, stdout)
}

// envoyRounds measures all fronts in turn, with all outstanding requests and with one.
func (o *options) envoyRounds(
	ctx context.Context, p *proxy, requests [][]byte, w *workload, progress io.Writer,
) ([]envoyRow, error) {
	var rows []envoyRow
	for _, n := range []int{o.Concurrency, 1} {
		for _, f := range p.fronts {
			rows = append(rows, envoyRow{Concurrency: n, Front: f.name})
		}
	}
	for round := range o.Rounds {
		for first := 0; first < len(rows); first += len(p.fronts) {
			group := rows[first : first+len(p.fronts)]
			for i := range group {
				at := (i + round) % len(group)
				r := &group[at]
				s, err := o.measureFront(ctx, p, p.fronts[at], requests, w, r.Concurrency)
				if err != nil {
					return nil, fmt.Errorf("through Envoy, %s: %w", r.Front, err)
				}
				r.Rounds = append(r.Rounds, s)
				fmt.Fprintf(progress, "round %d  c%-2d  %-10s %7.0f req/s  p50 %6.0f us  CPU %5.1f + %4.1f + %4.1f us\n",
					round+1, r.Concurrency, r.Front, s.ReqPerSec, s.P50, s.Envoy, s.Server, s.Redis)
			}
			for i := range group { // the front without the filter is the first
				group[i].Rounds[round].Added = group[i].Rounds[round].P50 - group[0].Rounds[round].P50
			}
		}
	}
	for i := range rows {
		rows[i].envoySample = medianEnvoySample(rows[i].Rounds)
	}
	return rows, nil
}

func (o *options) measureFront(
	ctx context.Context, p *proxy, f *front, requests [][]byte, w *workload, atOnce int,
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
	envoyBefore, before, err := frontUsage(ctx, p, f)
	if err != nil {
		return envoySample{}, err
	}
	start := time.Now()
	got := drive(o.Duration)
	took := time.Since(start)
	envoyAfter, after, err := frontUsage(ctx, p, f)
	if err != nil {
		return envoySample{}, err
	}
	if err := got.failed(); err != nil {
		return envoySample{}, err
	}
	s := newSample(got, took, before, after)
	return envoySample{
		ReqPerSec: s.ReqPerSec, P50: s.P50, P99: s.P99, Server: s.Server, Redis: s.Redis,
		Envoy: micros(envoyAfter-envoyBefore) / float64(got.answered()),
	}, nil
}

// frontUsage is what Envoy and the service behind the front have taken so far.
func frontUsage(ctx context.Context, p *proxy, f *front) (envoy time.Duration, u usage, err error) {
	if envoy, err = cpuTime(p.PID()); err == nil && f.service != nil {
		u, err = f.service.usage(ctx)
	}
	return envoy, u, err
}

func medianEnvoySample(rounds []envoySample) envoySample {
	mid := func(f func(envoySample) float64) float64 { return medianOf(rounds, f) }
	return envoySample{
		ReqPerSec: mid(func(s envoySample) float64 { return s.ReqPerSec }),
		P50:       mid(func(s envoySample) float64 { return s.P50 }),
		P99:       mid(func(s envoySample) float64 { return s.P99 }),
		Envoy:     mid(func(s envoySample) float64 { return s.Envoy }),
		Server:    mid(func(s envoySample) float64 { return s.Server }),
		Redis:     mid(func(s envoySample) float64 { return s.Redis }),
		Added:     mid(func(s envoySample) float64 { return s.Added }),
	}
}

// markdown writes one table a number of outstanding requests.
func (r *envoyReport) markdown(w io.Writer) {
	fmt.Fprintf(w, "%s. Through Envoy; medians of %d interleaved rounds of %s; w1; %s.\n", r.Machine,
		r.Settings.Rounds, r.Settings.Duration, r.Settings.Algorithm)
	last := 0
	for _, row := range r.Rows {
		if row.Concurrency != last {
			last = row.Concurrency
			fmt.Fprintf(w, "\n%d outstanding\n\n", last)
			fmt.Fprint(w,
				"| | req/s | p50 us | p99 us | added p50 us | CPU us Envoy + server + Redis |\n|---|---|---|---|---|---|\n")
		}
		fmt.Fprintf(w, "| %s | %.0f | %.0f | %.0f | %.0f | %.1f + %.1f + %.1f |\n", row.Front, row.ReqPerSec, row.P50,
			row.P99, row.Added, row.Envoy, row.Server, row.Redis)
	}
}
