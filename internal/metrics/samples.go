package metrics

import (
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// Kind is what a Sample is.
type Kind uint8

// The kinds.
const (
	Counter Kind = iota
	Gauge
	Histogram
)

// Sample is one series at a moment.
type Sample struct {
	Name   string // of the metric
	Kind   Kind
	Labels []Label
	Value  float64 // of a counter or gauge; of a histogram the sum
	// Of a histogram: how many values, and how many up to each bound.
	Count   uint64
	Buckets []Bucket
}

// Label is a name and a value.
type Label struct{ Name, Value string }

// Bucket is the values of a histogram up to a bound.
type Bucket struct {
	UpTo  float64
	Count uint64
}

// Samples are all series except those of the Go runtime, whose names change from release to release. They come with an
// error, too, if some could not be had.
func (m *Metrics) Samples() ([]Sample, error) {
	families, err := m.registry.Gather()
	var all []Sample
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "go_") {
			continue
		}
		for _, series := range f.GetMetric() {
			all = append(all, sample(f, series))
		}
	}
	return all, err
}

func sample(f *dto.MetricFamily, of *dto.Metric) Sample {
	s := Sample{Name: f.GetName(), Labels: make([]Label, len(of.GetLabel()))}
	for i, l := range of.GetLabel() {
		s.Labels[i] = Label{l.GetName(), l.GetValue()}
	}
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		s.Kind, s.Value = Counter, of.GetCounter().GetValue()
	case dto.MetricType_HISTOGRAM:
		h := of.GetHistogram()
		s.Kind, s.Value, s.Count = Histogram, h.GetSampleSum(), h.GetSampleCount()
		for _, b := range h.GetBucket() {
			s.Buckets = append(s.Buckets, Bucket{b.GetUpperBound(), b.GetCumulativeCount()})
		}
	default: // nothing else is registered
		s.Kind, s.Value = Gauge, of.GetGauge().GetValue()
	}
	return s
}
