package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weir-ratelimit/weir/bench/figure"
)

const (
	nameBuckets = "quota-buckets"
	// manyBuckets is as many buckets as Weir assigns to one Envoy by default.
	manyBuckets = 1000
	// reportEvery is the time between two reports of an Envoy.
	reportEvery = 5 * time.Second
	// bucketReports is for how many reports the service is measured at most.
	bucketReports = 3
)

// bucketsSample is what many buckets of one Envoy cost the service, which gets a report of all of them every 5 s.
type bucketsSample struct {
	Buckets   int     `json:"buckets"`
	Reports   uint64  `json:"reports"`         // that were measured
	ReqPerSec float64 `json:"req_per_s"`       // through Envoy, meanwhile: each bucket has some in each report
	Server    float64 `json:"server_cpu_ms_s"` // CPU time of the service a second
	Report    float64 `json:"report_cpu_ms"`   // the same a report: the report, and all charges until the next one
	Others    float64 `json:"others_cpu"`      // share of all CPUs that programs of others took
}

// measureBuckets measures a service of its own, whose Envoy has manyBuckets buckets, for so many reports.
func (o *options) measureBuckets(
	ctx context.Context, dir string, w *workload, upstream string, reports int,
) (*bucketsSample, error) {
	s, err := o.starter(dir)
	if err != nil {
		return nil, err
	}
	f := assigned(w.name, &target{name: nameBuckets}, headerValue, manyBuckets)
	defer f.service.stop()
	if err := s.serveQuotas(ctx, f, w, o.Algorithm); err != nil {
		return nil, err
	}
	if err := f.start(ctx, dir, upstream); err != nil {
		return nil, err
	}
	defer f.Stop(patience)
	requests := httpRequests(manyBuckets)
	drive := func(d, pause time.Duration) error {
		until, n, t := time.Now().Add(d), 0, &tally{}
		f.ask(ctx, func() []byte {
			if pause > 0 {
				<-time.After(pause)
			}
			n++
			return requests[n%manyBuckets]
		}, until, t)
		return t.failed()
	}
	for deadline := time.Now().Add(patience); ; {
		if err := drive(time.Second, 0); err != nil {
			return nil, err
		}
		n, err := sumMetric(ctx, f.service.admin, "weir_quota_buckets", `state="assigned"`)
		if err != nil {
			return nil, err
		}
		if n == manyBuckets {
			break
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d of %d buckets are assigned", n, manyBuckets)
		}
	}
	if err := drive(reportEvery, time.Millisecond); err != nil { // until the first report of all
		return nil, err
	}
	return f.overReports(ctx, reports, func(d time.Duration) error { return drive(d, time.Millisecond) })
}

// overReports measures the service while reports come.
func (f *front) overReports(
	ctx context.Context, reports int, drive func(time.Duration) error,
) (*bucketsSample, error) {
	reported, err := sumMetric(ctx, f.service.admin, "weir_quota_reports_total", "")
	if err != nil {
		return nil, err
	}
	answered := f.answered.Load()
	var failed error
	spent, err := during(ctx, f.usage, func() { failed = drive(time.Duration(reports) * reportEvery) })
	if err = cmp.Or(failed, err); err != nil {
		return nil, err
	}
	now, err := sumMetric(ctx, f.service.admin, "weir_quota_reports_total", "")
	if err != nil {
		return nil, err
	}
	if now == reported {
		return nil, errors.New("no report came")
	}
	cpu, took := micros(spent.server)/1e3, spent.took.Seconds()
	return &bucketsSample{
		Buckets: manyBuckets, Reports: now - reported, ReqPerSec: float64(f.answered.Load()-answered) / took,
		Server: cpu / took, Report: cpu / (took / reportEvery.Seconds()), Others: spent.others(),
	}, nil
}

// markdown writes one sentence.
func (s *bucketsSample) markdown(w io.Writer) {
	fmt.Fprint(w, "\n"+paragraph(fmt.Sprintf("Quotas of %s buckets in one Envoy with %.0f requests a second: %.1f ms of "+
		"Weir's CPU a second, which is %.0f ms for each report of all buckets, with what is charged until the next one; "+
		"over %d reports, others' CPU %.0f %%.", figure.Thousands(s.Buckets), s.ReqPerSec, s.Server, s.Report, s.Reports,
		100*s.Others)))
}
