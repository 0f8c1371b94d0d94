package offline

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Simulation is a simulation of one traffic against several limits, and how it is shown.
type Simulation struct {
	Rule, Traffic string // as they were given
	Seed          uint64
	IsRecorded    bool // the traffic is of a log, and has no seed
	Options       SimulationOptions
	Runs          []LimitRun
	Unit          string // of costs: "requests", or "hits" where a request may cost several
}

// LimitRun is one limit and what became of the traffic.
type LimitRun struct {
	Limit
	*Result
}

func newSimulation(o SimulationOptions) *Simulation { return &Simulation{Options: o, Unit: "requests"} }

// add adds the run of a limit, which is complete.
func (r *Simulation) add(l Limit, run *run) {
	if run.dearest != 1 {
		r.Unit = "hits"
	}
	r.Runs = append(r.Runs, LimitRun{Limit: l, Result: run.finish()})
}

// title says which traffic it was.
func (r *Simulation) title() string {
	text := r.Traffic + " for " + descriptors.FormatDuration(r.Options.Length)
	if r.IsRecorded {
		return text
	}
	return fmt.Sprintf("%s, seed %d", text, r.Seed)
}

// Heading says what was simulated, and where there are several limits, where each is written.
func (r *Simulation) Heading() string {
	lines := []string{"Rule: " + r.Rule, "Traffic: " + r.title()}
	runs := r.asked()
	for i, run := range runs {
		if run.Rule != "" && (i == 0 || run.Rule != runs[i-1].Rule) {
			lines = append(lines, "  "+run.Rule)
		}
	}
	if left := len(r.Runs) - len(runs); left > 0 {
		lines = append(lines, fmt.Sprintf("  Limits that no request of the log asks, only shown as JSON: %d", left))
	}
	return strings.Join(lines, "\n")
}

// asked are the runs that people are shown: of a log not those without a request.
func (r *Simulation) asked() []LimitRun {
	return slices.DeleteFunc(slices.Clone(r.Runs), func(run LimitRun) bool { return r.IsRecorded && run.Offered == 0 })
}

// WriteTable writes one line for each limit that is asked.
func (r *Simulation) WriteTable(w io.Writer) error {
	widest := len("limit")
	for _, run := range r.asked() {
		widest = max(widest, len(run.Name))
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%-*s\toffered\tadmitted\tdenied\tshare\tworst window\tN\tbound\tlockout\twait (mean)\t\n", widest,
		"limit")
	for _, run := range r.asked() {
		wait := "-"
		if run.Policy.MaxWait() > 0 {
			wait = fmt.Sprintf("%s (%s)", rounded(run.LongestWait), rounded(run.MeanWait))
		}
		fmt.Fprintf(table, "%-*s\t%d\t%d\t%d\t%.1f%%\t%s\t%d\t%d\t%s\t%s\t\n", widest, run.Name, run.Offered, run.Admitted,
			run.Denied, 100*run.share(), run.worstText(), run.Policy.Limit(), run.Bound, rounded(run.Lockout), wait)
	}
	return table.Flush()
}

// share is how much of what was offered is admitted.
func (run LimitRun) share() float64 { return float64(run.Admitted) / float64(max(run.Offered, 1)) }

// worstText is the worst window, or the most in flight.
func (run LimitRun) worstText() string {
	if run.Policy.Algorithm().CountsInFlight() {
		return fmt.Sprintf("%d at once", run.Worst)
	}
	return fmt.Sprintf("%d in %s", run.Worst, descriptors.FormatDuration(run.Policy.Window()))
}

// rounded is a duration for people: three digits or so.
func rounded(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		d = d.Round(100 * time.Millisecond)
	case d >= 100*time.Millisecond:
		d = d.Round(time.Millisecond)
	default:
		d = d.Round(10 * time.Microsecond)
	}
	return descriptors.FormatDuration(d)
}

type reportJSON struct {
	Rule          string    `json:"rule"`
	Traffic       string    `json:"traffic"`
	Seed          uint64    `json:"seed"`
	ForSeconds    float64   `json:"for_seconds"`
	BucketSeconds float64   `json:"bucket_seconds"`
	Unit          string    `json:"unit"`
	Limits        []runJSON `json:"limits"`
}

type runJSON struct {
	Name            string  `json:"name"`
	Rule            string  `json:"rule,omitempty"`
	Algorithm       string  `json:"algorithm"`
	RequestsPerUnit int64   `json:"requests_per_unit"`
	WindowSeconds   float64 `json:"window_seconds"`
	Capacity        int64   `json:"capacity"`
	*Result
	LockoutSeconds float64 `json:"lockout_seconds"`
	MeanWait       float64 `json:"mean_wait_seconds"`
	LongestWait    float64 `json:"longest_wait_seconds"`
}

// JSON returns what the table says, exactly, for encoding/json.
func (r *Simulation) JSON() any {
	out := reportJSON{
		Rule: r.Rule, Traffic: r.Traffic, Seed: r.Seed, Unit: r.Unit,
		ForSeconds: r.Options.Length.Seconds(), BucketSeconds: r.Options.Bucket.Seconds(),
	}
	for _, run := range r.Runs {
		p := run.Policy
		out.Limits = append(out.Limits, runJSON{
			Name: run.Name, Rule: run.Rule, Algorithm: p.Algorithm().String(), RequestsPerUnit: p.Limit(),
			WindowSeconds: p.Window().Seconds(), Capacity: p.Capacity(), Result: run.Result,
			LockoutSeconds: run.Lockout.Seconds(), MeanWait: run.MeanWait.Seconds(), LongestWait: run.LongestWait.Seconds(),
		})
	}
	return out
}

// peak is the top of every chart's y axis, in hits per second, so that limits can be compared.
func (r *Simulation) peak() float64 {
	most := int64(1)
	for _, run := range r.Runs {
		for _, b := range run.Buckets {
			most = max(most, b.Offered, b.Admitted, b.Admitted+b.Denied)
		}
	}
	return niceAbove(r.perSecond(most))
}

// perSecond is a bucket's count as a rate.
func (r *Simulation) perSecond(count int64) float64 {
	return float64(count) / r.Options.Bucket.Seconds()
}

// niceAbove is the first of 1, 2, 4, 5, 8, 10, 20, ... that is not below v > 0.
func niceAbove(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 4, 5, 8} {
		if v <= step*power*(1+1e-9) {
			return step * power
		}
	}
	return 10 * power
}

// number is a tick's label.
func number(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// timeUnit is the unit of the time axis: seconds, or a longer one where there would be thousands of them.
func (r *Simulation) timeUnit() (time.Duration, string) {
	switch length := r.Options.Length; {
	case length <= 20*time.Minute:
		return time.Second, "s"
	case length <= 5*time.Hour:
		return time.Minute, "min"
	case length <= 5*24*time.Hour:
		return time.Hour, "h"
	default:
		return 24 * time.Hour, "days"
	}
}

// timeTicks are the labelled times of the axis, in its unit; at most 7.
func (r *Simulation) timeTicks() []float64 {
	unit, _ := r.timeUnit()
	length := r.Options.Length.Seconds() / unit.Seconds()
	step := niceAbove(length / 6)
	var all []float64
	for i := 0; float64(i)*step <= length*(1+1e-9); i++ {
		all = append(all, float64(i)*step)
	}
	return all
}

// shown are the buckets within the time of the traffic, which is what charts show.
func (r *Simulation) shown(run LimitRun) []Bucket {
	return run.Buckets[:ceilDiv(int64(r.Options.Length), int64(r.Options.Bucket))]
}

const eighths = " ▁▂▃▄▅▆▇█"

// WriteCharts writes a chart of characters for each limit that is asked, at most 80 columns wide and rows high.
func (r *Simulation) WriteCharts(w io.Writer, rows int) {
	fmt.Fprintf(w, "█ admitted, ░ more that was offered, in %s/s; each column is %s\n", r.Unit,
		descriptors.FormatDuration(r.Options.Bucket))
	for _, run := range r.asked() {
		fmt.Fprintf(w, "\n%s%s\n", r.describe(run), r.laterText(run))
		r.writeChart(w, run, rows)
	}
}

// describe is the limit with what else decides.
func (r *Simulation) describe(run LimitRun) string {
	if run.Policy.Algorithm().CountsInFlight() && !r.IsRecorded {
		return fmt.Sprintf("%s, each takes %s", run.Limit, descriptors.FormatDuration(r.Options.Duration))
	}
	return run.String()
}

// laterText says how many hits go on after the chart's end.
func (r *Simulation) laterText(run LimitRun) string {
	later := int64(0)
	for _, b := range run.Buckets[len(r.shown(run)):] {
		later += b.Admitted
	}
	if later == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d go on later)", later)
}

func (r *Simulation) writeChart(w io.Writer, run LimitRun, rows int) {
	peak := r.peak()
	for row := rows - 1; row >= 0; row-- {
		label := ""
		if row == rows-1 || 2*(row+1) == rows {
			label = number(peak * float64(row+1) / float64(rows))
		}
		var line strings.Builder
		for _, b := range r.shown(run) {
			line.WriteRune(r.cell(b, peak, row, rows))
		}
		fmt.Fprintf(w, "%9s ┤%s\n", label, strings.TrimRight(line.String(), " "))
	}
	fmt.Fprintf(w, "%9s └%s\n", "0", strings.Repeat("─", len(r.shown(run))))
	fmt.Fprintf(w, "%11s%s\n", "", r.timeAxis())
}

// cell is the character of a bucket in a row, counted from the lowest.
func (r *Simulation) cell(b Bucket, peak float64, row, rows int) rune {
	height := func(count int64, parts int) int {
		h := int(math.Round(r.perSecond(count) / peak * float64(parts*rows)))
		if count > 0 {
			h = max(h, 1)
		}
		return h
	}
	if filled := height(b.Admitted, 8) - 8*row; filled > 0 {
		return []rune(eighths)[min(8, filled)]
	}
	if height(b.Offered, 1) > row {
		return '░'
	}
	return ' '
}

// timeAxis is the labels below a chart.
func (r *Simulation) timeAxis() string {
	unit, name := r.timeUnit()
	var line strings.Builder
	written := 0
	for _, t := range r.timeTicks() {
		column := int(t * unit.Seconds() / r.Options.Bucket.Seconds())
		text := number(t) + name
		line.WriteString(strings.Repeat(" ", max(0, column-written)))
		line.WriteString(text)
		written = max(written, column) + len(text)
	}
	return line.String()
}
