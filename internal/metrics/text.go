package metrics

import (
	"bufio"
	"io"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"
)

// WriteText writes a line for each counter, gauge and count of a histogram, "name: value", by the names of statsd.
func (m *Metrics) WriteText(w io.Writer) error {
	families, err := m.Gather()
	if len(families) == 0 {
		return err
	}
	names := Statsd{o: StatsdOptions{Format: statsdFormat, Prefix: "weir."}}
	var lines []string
	for _, f := range families {
		for _, s := range f.GetMetric() {
			name, _ := names.name(f.GetName(), s.GetLabel())
			lines = append(lines, name+": "+strconv.FormatFloat(valueOf(s), 'f', -1, 64))
		}
	}
	slices.Sort(lines)
	out := bufio.NewWriter(w)
	for _, line := range lines {
		_, _ = out.WriteString(line) // Flush returns its error
		_ = out.WriteByte('\n')
	}
	return out.Flush()
}

func valueOf(s *dto.Metric) float64 {
	switch {
	case s.GetCounter() != nil:
		return s.GetCounter().GetValue()
	case s.GetHistogram() != nil:
		return float64(s.GetHistogram().GetSampleCount())
	default:
		return s.GetGauge().GetValue()
	}
}
