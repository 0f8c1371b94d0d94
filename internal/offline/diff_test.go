package offline_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/offline"
)

// told is the changes, a line each.
func told(t *testing.T, before, after string) string {
	t.Helper()
	var b strings.Builder
	for _, c := range offline.Changes(compileText(t, before), compileText(t, after)) {
		fmt.Fprintf(&b, "%s %s %s", c.What, c.Domain, c.Rule)
		for _, f := range c.Fields {
			fmt.Fprintf(&b, "; %s: %s -> %s", f.Field, f.Old, f.New)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// compileText compiles files that are parted by ===.
func compileText(t *testing.T, text string) *descriptors.Set {
	t.Helper()
	var files []rulefile.File
	for i, part := range strings.Split(text, "===\n") {
		files = append(files, rulefile.File{Name: fmt.Sprintf("f%d.yaml", i), Data: []byte(part)})
	}
	set, err := rulefile.Compile(files)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

const shopOf = "domain: shop\ndescriptors:\n"

func TestChanges(t *testing.T) {
	for _, tt := range []struct{ name, before, after, want string }{
		{
			"rate",
			"- {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}",
			"- {key: user, rate_limit: {unit: hour, requests_per_unit: 6}}",
			"changed shop user; requests_per_unit: 5 -> 6; window: 1m -> 1h\n",
		},
		{
			"reservation",
			"- {key: user, rate_limit: {unit: minute, requests_per_unit: 50}}",
			"- {key: user, rate_limit: {unit: minute, requests_per_unit: 50, reservation: {estimate: 5}}}",
			"changed shop user; charge_denied: full -> none; reservation:  -> {\"estimate\":5,\"at_most\":25}\n",
		},
		{
			"algorithm, burst, mode",
			"- {key: user, rate_limit: {algorithm: funnel, unit: minute, requests_per_unit: 5, burst: 7}}",
			"- {key: user, shadow_mode: true, rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 5}}",
			"changed shop user; mode:  -> shadow; " +
				"algorithm: funnel -> token_bucket; burst: 7 -> ; " +
				"counter: the old one -> a new one: hits counted before are forgotten\n",
		},
		{
			"only the rate, beside a burst", // 5 was shown as a capacity that came from nowhere
			"- {key: user, rate_limit: {algorithm: funnel, unit: minute, requests_per_unit: 10, burst: 10}}",
			"- {key: user, rate_limit: {algorithm: funnel, unit: minute, requests_per_unit: 20, burst: 10}}",
			"changed shop user; requests_per_unit: 10 -> 20\n",
		},
		{
			"only the rate, of a limit whose capacity is not its rate",
			"- {key: user, rate_limit: {algorithm: smooth_bursty, unit: second, requests_per_unit: 10, burst_seconds: 1}}",
			"- {key: user, rate_limit: {algorithm: smooth_bursty, unit: second, requests_per_unit: 5, burst_seconds: 2}}",
			"changed shop user; requests_per_unit: 10 -> 5; burst_seconds: 1 -> 2\n",
		},
		{
			"lease",
			"- {key: user, rate_limit: {algorithm: concurrency, requests_per_unit: 10, lease: 30s}}",
			"- {key: user, rate_limit: {algorithm: concurrency, requests_per_unit: 10, lease: 40s}}",
			"changed shop user; lease: 30s -> 40s\n",
		},
		{
			"limit before another one",
			"- {key: user, rate_limit: {unit: day, requests_per_unit: 1000}}",
			"- {key: user, rate_limits: [{unit: second, requests_per_unit: 5}, {unit: day, requests_per_unit: 1000}]}",
			"changed shop user; fixed_window per 1s: algorithm:  -> fixed_window; " +
				"fixed_window per 1s: requests_per_unit:  -> 5; fixed_window per 1s: window:  -> 1s; " +
				"fixed_window per 1s: charge_denied:  -> full; fixed_window per 1s: on_store_failure:  -> local\n",
		},
		{
			"limit with a longer window than another one",
			"- {key: user, rate_limits: [{unit: second, requests_per_unit: 5}]}",
			"- {key: user, rate_limits: [{unit: second, requests_per_unit: 5}, {unit: day, requests_per_unit: 1000}]}",
			"changed shop user; fixed_window per 1d: algorithm:  -> fixed_window; " +
				"fixed_window per 1d: requests_per_unit:  -> 1000; fixed_window per 1d: window:  -> 1d; " +
				"fixed_window per 1d: charge_denied:  -> full; fixed_window per 1d: on_store_failure:  -> local; " +
				"fixed_window per 1s: counter: the old one -> a new one: hits counted before are forgotten\n",
		},
		{
			"key of the counters",
			"- {key: ip, value: a*, rate_limit: {unit: second, requests_per_unit: 5}}",
			"- {key: ip, value: a*, share_threshold: true, rate_limit: {unit: second, requests_per_unit: 5}}",
			"changed shop ip=a*; share_threshold:  -> true; " +
				"counter: the old one -> a new one: hits counted before are forgotten\n",
		},
		{
			"rules come and go",
			"- {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}",
			"- key: path\n  value: /login\n  descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5, on_store_failure: deny}}]",
			"added shop path=/login\n" +
				"added shop path=/login > user; algorithm:  -> fixed_window; requests_per_unit:  -> 5; window:  -> 1m; " +
				"charge_denied:  -> full; on_store_failure:  -> deny\n" +
				"removed shop user; algorithm: fixed_window -> ; requests_per_unit: 5 -> ; window: 1m -> ; " +
				"charge_denied: full -> ; on_store_failure: local -> \n",
		},
		{
			"limits come, go and change by name",
			"- {key: user, rate_limits: [{name: a, unit: day, requests_per_unit: 5}, {name: b, unit: day, requests_per_unit: 6}]}",
			"- {key: user, rate_limits: [{name: b, unit: day, requests_per_unit: 7}, {name: c, unit: day, requests_per_unit: 5}]}",
			"changed shop user; a: algorithm: fixed_window -> ; a: requests_per_unit: 5 -> ; a: window: 1d -> ; " +
				"a: charge_denied: full -> ; a: name: a -> ; a: on_store_failure: local -> ; b: requests_per_unit: 6 -> 7; " +
				"c: algorithm:  -> fixed_window; c: requests_per_unit:  -> 5; c: window:  -> 1d; c: charge_denied:  -> full; " +
				"c: name:  -> c; c: on_store_failure:  -> local\n",
		},
		{
			"values of a list beyond those that the path shows",
			"- {key: user, values: [a, b, c, d, e]}", "- {key: user, values: [a, b, c, d, f]}",
			"changed shop user values a, b, c, and 2 more; values: 1 gone: e -> 1 new: f\n",
		},
		{
			"blocks",
			"- {key: ip, cidr: [10.0.0.0/8, 11.0.0.0/8, 12.0.0.0/8, 13.0.0.0/8]}",
			"- {key: ip, cidr: [10.0.0.0/8, 11.0.0.0/8, 12.0.0.0/8, 14.0.0.0/8]}",
			"changed shop ip cidr 10.0.0.0/8, 11.0.0.0/8, 12.0.0.0/8, and 1 more; " +
				"values: 1 gone: 13.0.0.0/8 -> 1 new: 14.0.0.0/8\n",
		},
		{
			"values that the path shows",
			"- {key: user, values: [a, b]}",
			"- {key: user, values: [c, b]}",
			"added shop user values c, b\nremoved shop user values a, b\n",
		},
		{
			"order of patterns",
			"- {key: path, value: /a*}\n- {key: path, value: '*b'}", "- {key: path, value: '*b'}\n- {key: path, value: /a*}",
			"reordered shop path=*b; matched: after path=/a* -> before path=/a*\n",
		},
		{
			"what a rule says",
			"- {key: user, share_threshold: true, value: a*, response: {headers: {x: '1'}}, metadata: {a: 1}}",
			"- {key: user, value: a*, response: {headers: {x: '2'}}, metadata: {a: 2}, rate_limit: {unlimited: true}}",
			"changed shop user=a*; metadata: {\"a\":1} -> {\"a\":2}; response: {\"headers\":[{\"name\":\"x\",\"value\":\"1\"}]} -> {\"headers\":[{\"name\":\"x\",\"value\":\"2\"}]}; share_threshold: true -> ; unlimited:  -> true\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, told(t, shopOf+tt.before, shopOf+tt.after)); diff != "" {
				t.Error(diff)
			}
			if same := told(t, shopOf+tt.after, shopOf+tt.after); same != "" {
				t.Errorf("a set differs from itself: %s", same)
			}
		})
	}
}

func TestDomainsComeAndGo(t *testing.T) {
	want := "removed a \nremoved a user\nadded b \nadded b user\n"
	if diff := cmp.Diff(want, told(t, "domain: a\ndescriptors: [{key: user}]\n",
		"domain: b\ndescriptors: [{key: user}]\n")); diff != "" {
		t.Error(diff)
	}
}

// The same meaning, written otherwise.
func TestNoChange(t *testing.T) {
	before := `
domain: shop
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: ip, rate_limit: {algorithm: sliding_window, unit: hour, requests_per_unit: 5}}
- {key: day, rate_limit: {unit: day, align: calendar, time_zone: Europe/Berlin, requests_per_unit: 5}}
- {key: host, values: [a, b]}
- {key: path, value: /a*}
- {key: path, value: /b*}
- {key: net, cidr: [10.0.0.0/8]}
- {key: net, cidr: [10.1.0.0/16]}
- {key: f, rate_limit: {algorithm: funnel, unit: second, requests_per_unit: 5, burst: 5}}
`
	after := `
domain: shop
descriptors:
# in another order
- {key: net, cidr: [10.1.0.0/16]}
- {key: net, cidr: [10.0.0.0/8]}
- {key: path, value: /a*}
- {key: path, value: /b*}
- {key: host, values: [a, b], description: hosts, owner: me}
- {key: ip, rate_limit: {algorithm: sliding_window, window: 1h, requests_per_unit: 5, segments: 10}}
- {key: f, rate_limit: {algorithm: funnel, unit: second, requests_per_unit: 5}}
===
domain: shop
descriptors:
- {key: day, rate_limit: {requests_per_unit: 5, unit: day, align: calendar, time_zone: Europe/Berlin}}
- key: user
  rate_limit: {window: 60s, requests_per_unit: 5, algorithm: fixed_window, charge_denied: full}
`
	if got := told(t, before, after); got != "" {
		t.Errorf("changes of what is the same:\n%s", got)
	}
}
