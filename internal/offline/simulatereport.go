package offline

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// Simulation is the report on one traffic and several limits.
type Simulation struct {
	Rule          string            `json:"rule"` // Rule and Traffic are as given on the command line
	Traffic       string            `json:"traffic"`
	Seed          uint64            `json:"seed"`
	ForSeconds    float64           `json:"for_seconds"`
	BucketSeconds float64           `json:"bucket_seconds"`
	Runs          []LimitRun        `json:"limits"`
	Options       SimulationOptions `json:"-"`
}

// LimitRun is one limit with its result.
type LimitRun struct {
	Limit

	Algorithm       string  `json:"algorithm"`
	RequestsPerUnit int64   `json:"requests_per_unit"`
	WindowSeconds   float64 `json:"window_seconds"`
	Capacity        int64   `json:"capacity"`
	*Result
}

// Heading returns the rules, the traffic, and if there are several limits, their positions.
func (r *Simulation) Heading() string {
	lines := []string{"Rule: " + r.Rule, fmt.Sprintf("Traffic: %s for %s, seed %d", r.Traffic,
		descriptors.FormatDuration(r.Options.Length), r.Seed)}
	for i, run := range r.Runs {
		if run.Rule != "" && (i == 0 || run.Rule != r.Runs[i-1].Rule) {
			lines = append(lines, "  "+run.Rule)
		}
	}
	return strings.Join(lines, "\n")
}

// WriteTable writes one line per limit.
func (r *Simulation) WriteTable(w io.Writer) error {
	widest := len("limit")
	hasReservation := false
	for _, run := range r.Runs {
		widest = max(widest, len(run.Name))
		hasReservation = hasReservation || run.Reservation != nil
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	const columns = "%-*s\trequests\tadmitted\tdenied\tpassed\tmost/window\trate\tbound\tlockout\twait (mean)\t"
	fmt.Fprintf(table, columns, widest, "limit")
	if hasReservation {
		fmt.Fprint(table, "charged\treturned\t")
	}
	fmt.Fprintln(table)
	for _, run := range r.Runs {
		wait := "-"
		if run.Policy.MaxWait() > 0 {
			wait = fmt.Sprintf("%s (%s)", rounded(run.LongestWait), rounded(run.MeanWait))
		}
		fmt.Fprintf(table, "%-*s\t%d\t%d\t%d\t%.1f%%\t%s\t%d\t%d\t%s\t%s\t", widest, run.Name, run.Offered, run.Admitted,
			run.Denied, 100*float64(run.Admitted)/float64(max(run.Offered, 1)), run.worstText(), run.Policy.Limit(), run.Bound,
			rounded(run.Lockout), wait)
		if hasReservation {
			fmt.Fprintf(table, "%d\t%d\t", run.Charged, run.Returned)
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

// worstText returns Worst with its unit.
func (run LimitRun) worstText() string {
	if run.Policy.Algorithm().CountsInFlight() {
		return fmt.Sprintf("%d at once", run.Worst)
	}
	return fmt.Sprintf("%d in %s", run.Worst, descriptors.FormatDuration(run.Policy.Window()))
}

// rounded formats a duration with about three digits.
func rounded(s Seconds) string {
	d := time.Duration(s)
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

const eighths = " ▁▂▃▄▅▆▇█"

// WriteCharts writes a chart per limit, at most 80 columns wide, of the offered and the admitted requests over time.
// All charts have the same scale.
func (r *Simulation) WriteCharts(w io.Writer) {
	n := ceilDiv(int64(r.Options.Length), int64(r.Options.bucket())) // delayed requests may pass later
	most := int64(1)
	for _, run := range r.Runs {
		for _, b := range run.Buckets[:n] {
			most = max(most, b.Offered, b.Admitted)
		}
	}
	fmt.Fprintf(w, "█ is %.4g requests/s; each column is %s\n", float64(most)/r.BucketSeconds,
		descriptors.FormatDuration(r.Options.bucket()))
	end := descriptors.FormatDuration(r.Options.Length)
	for _, run := range r.Runs {
		takes := ""
		if run.Policy.Algorithm().CountsInFlight() || run.Reservation != nil {
			takes = ", each takes " + descriptors.FormatDuration(r.Options.Duration)
		}
		if cost := r.Options.cost(run.Limit); cost > 1 {
			takes += fmt.Sprintf(", each costs %d", cost)
		}
		var offered, admitted []rune
		for _, b := range run.Buckets[:n] {
			offered, admitted = append(offered, cell(b.Offered, most)), append(admitted, cell(b.Admitted, most))
		}
		fmt.Fprintf(w, "\n%s%s\n offered  %s\nadmitted  %s\n%10s0s%*s\n", run, takes, string(offered), string(admitted), "",
			max(int(n)-len("0s"), len(end)+1), end)
	}
}

// cell returns the bar for a count.
func cell(count, most int64) rune {
	height := int(math.Round(8 * float64(count) / float64(most)))
	if count > 0 {
		height = max(height, 1)
	}
	return []rune(eighths)[height]
}
