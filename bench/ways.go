package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// Names of the fronts that ask Weir in other ways than about each request over TCP.
const (
	nameUnix        = "memory-unix"
	nameQuota       = "quota"
	nameQuotaHeader = "quota-header"

	// quotaKeys are the buckets of nameQuotaHeader: quotas are for few, large limits.
	quotaKeys = 100
	// quotaLimit is a limit a second of which also a bucket that nobody knows yet gets more than a front can ask.
	quotaLimit = 1_000_000_000
)

// startWays returns a front for each other way to ask Weir with counters in memory, and starts what they need. The
// caller stops the targets, also those that come with an error.
func (o *options) startWays(ctx context.Context, dir string, w *workload) (fronts []*front, err error) {
	s, err := o.starter(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range []*front{
		asking(w.name, &target{name: nameUnix}),
		assigned(w.name, &target{name: nameQuota}, "{string_value: k0}", w.keys),
		assigned(w.name, &target{name: nameQuotaHeader}, headerValue, min(quotaKeys, w.keys)),
	} {
		fronts = append(fronts, f)
		if f.name == nameUnix {
			f.service.addr = "unix:" + filepath.Join(dir, nameUnix+".sock")
			err = s.serveFront(ctx, f, w.ruleFile("algorithm: "+o.Algorithm))
		} else {
			err = s.serveQuotas(ctx, f, w, o.Algorithm)
		}
		if err != nil {
			return fronts, err
		}
	}
	return fronts, nil
}

// headerValue has the header x-key be the value of a bucket's entry.
const headerValue = `{custom_value: {name: key, typed_config: {` +
	`"@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: x-key}}}`

// serveQuotas starts the service of a front that gets quotas, with a limit that no front reaches.
func (s *starter) serveQuotas(ctx context.Context, f *front, w *workload, algorithm string) (err error) {
	if f.service.addr, err = launch.FreeAddr(ctx); err != nil {
		return err
	}
	rules := fmt.Sprintf("domain: %s\ndescriptors:\n  - key: %s\n    rate_limit: {requests_per_unit: %d, unit: second, "+
		"algorithm: %s}\n", w.name, ruleKey(0, 0), quotaLimit, algorithm)
	return s.serveFront(ctx, f, rules, "--quota")
}

// serveFront starts the service of a front, with counters in memory.
func (s *starter) serveFront(ctx context.Context, f *front, rules string, flags ...string) error {
	file := filepath.Join(s.dir, "rules-"+f.name+".yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		return err
	}
	return s.serve(ctx, f.service, "memory", file, flags...)
}

// assigned is a front with the quota filter of Envoy: the service assigns it parts of limits. id is the value of a
// bucket's entry, and keys is how many values of the header come.
func assigned(domain string, service *target, id string, keys int) *front {
	const quota = `type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuota`
	f := &front{name: service.name, service: service, keys: keys, filter: fmt.Sprintf(
		`{name: envoy.filters.http.rate_limit_quota, typed_config: {"@type": %sFilterConfig, domain: %s, `+
			`rlqs_server: {envoy_grpc: {cluster_name: service}}, bucket_matchers: {on_no_match: {action: {name: quota, `+
			`typed_config: {"@type": %sBucketSettings, bucket_id_builder: {bucket_id_builder: {%s: %s}}, `+
			`reporting_interval: 5s, no_assignment_behavior: {fallback_rate_limit: {blanket_rule: ALLOW_ALL}}}}}}}}`,
		quota, domain, quota, ruleKey(0, 0), id)}
	f.check = f.checkAssigned
	return f
}

// checkAssigned is nil if the service has assigned a token bucket to this front.
func (f *front) checkAssigned(ctx context.Context) error {
	n, err := sumMetric(ctx, f.service.admin, "weir_quota_assignments_total", `kind="token_bucket"`)
	if err == nil && n == 0 {
		err = fmt.Errorf("no quota was assigned\n%s", f.service.lastWords())
	}
	return err
}
