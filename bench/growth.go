package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// Where -growth writes, seen from bench/.
const (
	growthDoc  = "../docs/performance.md"
	growthJSON = "results/growth.json"
)

// growthReport is what is kept of a run.
type growthReport struct {
	Machine machine   `json:"machine"`
	Figures []*figure `json:"figures"`
	Facts   []fact    `json:"facts"`
}

// fact is what needs no plot.
type fact struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// growth measures figures one after the other.
type growth struct {
	*options
	dir      string
	starter  *starter
	progress io.Writer
	growthReport
}

func (o *options) grow(ctx context.Context, dir string, stdout, progress io.Writer) error {
	s, err := o.starter(dir)
	if err != nil {
		return err
	}
	g := &growth{options: o, dir: dir, starter: s, progress: progress}
	g.Machine = thisMachine()
	chosen := list(o.parts)
	if len(chosen) == 0 {
		chosen = partNames()
	} else if err := g.readLast(); err != nil {
		return err
	}
	for _, name := range chosen {
		i := slices.IndexFunc(growthParts, func(p growthPart) bool { return p.name == name })
		if i < 0 {
			return fmt.Errorf("-parts: %q is none of %s", name, strings.Join(partNames(), ", "))
		}
		if err := growthParts[i].measure(g, ctx); err != nil {
			return err
		}
	}
	return g.publish(stdout)
}

// growthPart is what can be measured by itself.
type growthPart struct {
	name    string
	measure func(*growth, context.Context) error
}

// growthParts are all parts, in the order of the document.
var growthParts = []growthPart{
	{"rules", (*growth).rules},
	{"replicas", (*growth).replicas},
	{"reload", (*growth).reload},
}

func partNames() (names []string) {
	for _, p := range growthParts {
		names = append(names, p.name)
	}
	return names
}

// readLast reads what was measured last.
func (g *growth) readLast() error {
	text, err := os.ReadFile(growthJSON)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, &g.growthReport)
}

// disturbed notes what others took of the machine.
func disturbed(f *figure, samples []sample) {
	for _, s := range samples {
		f.Others = max(f.Others, s.Others)
	}
}

// begin adds a figure, or puts it in the place of the one that was measured last.
func (g *growth) begin(f *figure) {
	f.Measured = fmt.Sprintf("%s, medians of %d rounds of %s", time.Now().Format(time.DateOnly), g.Rounds, g.Duration)
	if i := slices.IndexFunc(g.Figures, func(old *figure) bool { return old.Name == f.Name }); i >= 0 {
		g.Figures[i] = f
		return
	}
	g.Figures = append(g.Figures, f)
}

// note adds a fact, or puts it in the place of the one that was measured last.
func (g *growth) note(name, format string, args ...any) {
	noted := fact{Name: name, Text: fmt.Sprintf(format, args...)}
	if i := slices.IndexFunc(g.Facts, func(old fact) bool { return old.Name == name }); i >= 0 {
		g.Facts[i] = noted
		return
	}
	g.Facts = append(g.Facts, noted)
}

// mostRules is the most rules that are measured.
const mostRules = 100_000

// rules measures Weir beside the no-op server by the number of rules, all keys warm.
func (g *growth) rules(ctx context.Context) error {
	f := &figure{
		Name: "rules", Title: "CPU per request by number of rules", Size: "rules",
		Sizes: []int{10, 100, 1000, 10_000, mostRules},
	}
	g.begin(f)
	f.add("no-op server, us", 1)
	f.add("memory, us", 1)
	f.add("memory / no-op", 2)
	for _, n := range f.Sizes {
		w := &workload{name: f.Name, keys: max(n, 10_000), descriptors: 1, rules: n}
		rows, err := g.point(ctx, w, []string{nameNoop, nameMemory})
		if err != nil {
			return fmt.Errorf("%d rules: %w", n, err)
		}
		for i, r := range rows {
			f.put(i, r.Server)
			disturbed(f, r.Rounds)
		}
		f.put(len(rows), rows[1].CPURatio)
	}
	return nil
}

// point measures targets of its own on one workload.
func (g *growth) point(ctx context.Context, w *workload, targets []string) (rows []row, err error) {
	s, err := g.fresh(w)
	if err != nil {
		return nil, err
	}
	var started []*target
	defer func() { stopAll(started) }()
	for _, name := range targets {
		t, err := s.start(ctx, name)
		if err != nil {
			return nil, err
		}
		started = append(started, t)
	}
	b, err := g.bench(w, started)
	if err != nil {
		return nil, err
	}
	for _, t := range started {
		if err := b.warm(ctx, t); err != nil {
			return nil, err
		}
	}
	if err := b.run(ctx); err != nil {
		return nil, err
	}
	return b.report().Rows, nil
}

// fresh is a starter with a directory and rules of its own.
func (g *growth) fresh(w *workload) (*starter, error) {
	dir, err := os.MkdirTemp(g.dir, w.name)
	s := *g.starter
	s.dir = dir
	s.rules = func(dir, fields string) error {
		return os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(w.ruleFile(fields)), 0o600)
	}
	return &s, err
}

func (g *growth) bench(w *workload, targets []*target) (*bench, error) {
	r, err := w.encode()
	return &bench{
		settings: g.settings, targets: targets, progress: g.progress, scenarios: []scenario{{name: w.name, w: w}},
		requests: map[*workload]*requests{w: r}, samples: map[string]map[string][]sample{},
	}, err
}

// warm asks for every key once.
func (b *bench) warm(ctx context.Context, t *target) error {
	w := b.scenarios[0].w
	l, err := dial(t.addr, w, b.requests[w], b.Connections)
	if err != nil {
		return err
	}
	defer l.close()
	keys := make([]int, w.keys)
	for i := range keys {
		keys[i] = i
	}
	return l.each(ctx, keys, b.Concurrency).failed()
}

// replicas measures replicas that share a Redis, and the load.
func (g *growth) replicas(ctx context.Context) error {
	f := &figure{
		Name: "replicas", Title: "CPU per request by number of replicas on one Redis", Size: "replicas",
	}
	g.begin(f)
	f.add("replicas, us", 1)
	f.add("Redis, us", 1)
	f.add("calls to Redis per request", 3)
	w := &workload{name: "replicas", keys: 10_000, descriptors: 1, rules: 1}
	s, err := g.fresh(w)
	if err != nil {
		return err
	}
	var all []*target
	defer func() { stopAll(all) }()
	for _, n := range []int{1, 2, 5, 10} {
		for len(all) < n {
			t, err := s.replica(ctx, all)
			if err != nil {
				return err
			}
			all = append(all, t)
		}
		got, err := g.shared(ctx, w, all)
		if err != nil {
			return fmt.Errorf("%d replicas: %w", n, err)
		}
		f.Sizes = append(f.Sizes, n)
		disturbed(f, got)
		for i, of := range []func(sample) float64{
			func(s sample) float64 { return s.Server },
			func(s sample) float64 { return s.Redis },
			func(s sample) float64 { return s.Calls },
		} {
			f.put(i, medianOf(got, of))
		}
	}
	return nil
}

// replica starts one more process on the Redis of the first.
func (s *starter) replica(ctx context.Context, all []*target) (*target, error) {
	if len(all) == 0 {
		return s.start(ctx, "redis")
	}
	addr, err := launch.FreeAddr(ctx)
	if err != nil {
		return nil, err
	}
	t := &target{name: fmt.Sprintf("replica%d", len(all)), addr: addr}
	return t, s.serve(ctx, t, "unix://"+all[0].socket+"?db=0", filepath.Join(s.dir, "rules-redis"))
}

// shared measures several processes under one load, once a round.
func (g *growth) shared(ctx context.Context, w *workload, all []*target) ([]sample, error) {
	r, err := w.encode()
	if err != nil {
		return nil, err
	}
	l := &load{w: w, requests: r}
	defer l.close()
	for _, t := range all {
		one, err := dial(t.addr, w, r, max(1, g.Connections/len(all)))
		if err != nil {
			return nil, err
		}
		l.conns = append(l.conns, one.conns...)
	}
	if err := l.closed(ctx, g.WarmUp, g.Concurrency).failed(); err != nil {
		return nil, err
	}
	var samples []sample
	for range g.Rounds {
		var got *tally
		usage := func(ctx context.Context) (usage, error) { return usageOf(ctx, all) }
		spent, err := during(ctx, usage, func() { got = l.closed(ctx, g.Duration, g.Concurrency) })
		if err != nil {
			return nil, err
		}
		if err := expect(w, all[0], got); err != nil {
			return nil, err
		}
		samples = append(samples, newSample(got, &spent))
	}
	return samples, nil
}

// usageOf adds the servers' CPU time up; the Redis is the first one's.
func usageOf(ctx context.Context, all []*target) (usage, error) {
	sum, err := all[0].usage(ctx)
	for _, t := range all[1:] {
		if err != nil {
			break
		}
		var u time.Duration
		u, err = cpuTime(t.pid)
		sum.server += u
	}
	return sum, err
}

// publish writes the JSON and the section of the document between its marks.
func (g *growth) publish(stdout io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n", g.Machine)
	for _, f := range g.Figures {
		fmt.Fprintf(&b, "\n### %s\n\n%s", f.Title, f.table())
	}
	b.WriteString("\n### Expiry, start and reload\n\n")
	for _, fact := range g.Facts {
		b.WriteString(item(fact.Text))
	}
	if _, err := io.WriteString(stdout, b.String()); err != nil {
		return err
	}
	if err := writeJSON(growthJSON, g.growthReport); err != nil {
		return err
	}
	return replaceBetween(growthDoc, "growth", b.String())
}

// item is the text as an item of a list, its lines not longer than those of the documents.
func item(text string) string { return wrap(text, "-", " ") }

// paragraph is the text in lines that are not longer than those of the documents.
func paragraph(text string) string { return wrap(text, "", "") }

// wrap begins the first line with one mark and the others with another.
func wrap(text, first, others string) string {
	const longest = 100
	var b strings.Builder
	line := first
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > longest && line != first {
			b.WriteString(line + "\n")
			line = others
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	b.WriteString(line + "\n")
	return b.String()
}
