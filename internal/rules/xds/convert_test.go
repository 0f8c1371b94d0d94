package xds

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

type (
	descriptor = ratelimitv3.RateLimitDescriptor
	policy     = ratelimitv3.RateLimitPolicy
)

const file = "xds://gateway:18001 domain d"

// compile compiles the rules of a domain.
func compile(t *testing.T, rules ...*descriptor) *descriptors.Set {
	t.Helper()
	b := descriptors.NewBuilder(descriptors.Process{})
	add(b, file, partnertest.Domain("d", rules...))
	set, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// limitOf returns the path and limit of the rule that matches a request with these entries, "key=value".
func limitOf(set *descriptors.Set, entries ...string) string {
	var request []descriptors.Entry
	for _, e := range entries {
		key, value, _ := strings.Cut(e, "=")
		request = append(request, descriptors.Entry{Key: key, Value: value})
	}
	r := set.Domain("d").Match(request)
	if r == nil {
		return "none"
	}
	if len(r.Limits) == 0 {
		return "no limit"
	}
	return strconv.FormatInt(r.Limits[0].Policy.Limit(), 10)
}

// In rules of Envoy Gateway and the AI gateway, * in keys is an ordinary character, as are /, | and invert:.
func TestShapesOfGateways(t *testing.T) {
	const route = "httproute/default/r/rule/0/match/0/*"
	const wild = "httproute/default/r/rule/0/match/0/*_example_com"
	set := compile(t,
		partnertest.Node(route, route,
			partnertest.Limit("rule-0-match-0", "rule-0-match-0", 3),
			partnertest.Node("masked_remote_address", "0.0.0.0/0", partnertest.Limit("remote_address", "", 50)),
			partnertest.Limit("masked_remote_address", "invert:192.0.2.0/24", 7),
			partnertest.Limit("rule-1-match--1", "rule-1-match--1", 9),
		),
		partnertest.Node(wild, wild, partnertest.Limit("rule-0-match-0", "", 4)),
		partnertest.Node("backend_name", "ns/name", partnertest.Node("model_name_override", "",
			partnertest.Limit("rule-0-user|x", "", 11))),
	)
	if w := set.Warnings(); len(w) > 0 {
		t.Errorf("warnings: %s", w)
	}
	for _, test := range []struct {
		want    string
		entries []string
	}{
		{"3", []string{route + "=" + route, "rule-0-match-0=rule-0-match-0"}},
		{"none", []string{route + "=" + route, "rule-0-match-0=other"}},
		{"50", []string{route + "=" + route, "masked_remote_address=0.0.0.0/0", "remote_address=10.0.0.1"}},
		{"no limit", []string{route + "=" + route, "masked_remote_address=0.0.0.0/0"}},
		{"7", []string{route + "=" + route, "masked_remote_address=invert:192.0.2.0/24"}},
		{"9", []string{route + "=" + route, "rule-1-match--1=rule-1-match--1"}},
		{"4", []string{wild + "=" + wild, "rule-0-match-0=anything"}},
		{"none", []string{strings.Replace(route, "*", "host", 1) + "=" + route, "rule-0-match-0=rule-0-match-0"}},
		{"11", []string{"backend_name=ns/name", "model_name_override=m", "rule-0-user|x=u"}},
	} {
		if got := limitOf(set, test.entries...); got != test.want {
			t.Errorf("%q: %s, want %s", test.entries, got, test.want)
		}
	}
}

// If a key and value occur twice, the first limit counts, with a warning. If only one has a limit, it counts.
func TestDuplicates(t *testing.T) {
	shadow := partnertest.Limit("k", "v", 3)
	shadow.ShadowMode = true
	set := compile(t,
		partnertest.Node("masked", "10.0.0.0/8", partnertest.Limit("remote_address", "", 1)),
		partnertest.Limit("masked", "10.0.0.0/8", 2),
		partnertest.Node("k", "v", partnertest.Limit("below", "", 4), partnertest.Limit("twice", "", 5)),
		shadow,
		partnertest.Node("k", "v", partnertest.Limit("other", "", 6), partnertest.Limit("twice", "", 7)),
		partnertest.Limit("k", "v", 8),
	)
	for entries, want := range map[string]string{
		"masked=10.0.0.0/8": "2", "masked=10.0.0.0/8 remote_address=x": "1",
		"k=v": "3", "k=v below=x": "4", "k=v twice=x": "5", "k=v other=x": "6",
	} {
		if got := limitOf(set, strings.Fields(entries)...); got != want {
			t.Errorf("%s: %s, want %s", entries, got, want)
		}
	}
	if r := set.Domain("d").Rule("k=v"); r == nil || r.Mode != limiter.Shadow {
		t.Errorf("the rule has lost its mode: %+v", r)
	}
	want := []string{
		file + ": descriptors[4].descriptors[1]: key and value are the same as in descriptors[2].descriptors[1], whose limit applies; the " +
			"limit here is not used; remove one of the two",
		file + ": descriptors[5]: key and value are the same as in descriptors[3], whose limit applies; the limit here is not used; " +
			"remove one of the two",
	}
	if diff := cmp.Diff(want, strings.Split(set.Warnings().Error(), "\n")); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// Every field of the messages is converted.
func TestFields(t *testing.T) {
	metadata, err := structpb.NewStruct(map[string]any{"a": 1.5, "b": []any{"x", true, nil}})
	if err != nil {
		t.Fatal(err)
	}
	units := []*descriptor{
		{Key: "quota", QuotaMode: true, DetailedMetric: true, Metadata: metadata, RateLimit: &policy{
			Unit: ratelimitv3.RateLimitUnit_WEEK, RequestsPerUnit: math.MaxUint32, Name: "named",
		}},
		{Key: "both", QuotaMode: true, ShadowMode: true, RateLimit: &policy{
			Unit: ratelimitv3.RateLimitUnit_MONTH, Replaces: []*ratelimitv3.RateLimitReplace{{Name: "named"}},
		}},
		{Key: "free", RateLimit: &policy{Unlimited: true, RequestsPerUnit: 5}},
		{Key: "year", RateLimit: &policy{Unit: ratelimitv3.RateLimitUnit_YEAR, RequestsPerUnit: 1}},
		{Key: "none"},
	}
	d := compile(t, units...).Domain("d")
	quota, both := d.Rule("quota"), d.Rule("both")
	if l := quota.Limits[0]; quota.Mode != limiter.Quota || l.Name != "named" ||
		l.Unit != descriptors.Week ||
		l.Policy.Window() != 7*24*time.Hour || l.Policy.Limit() != math.MaxUint32 ||
		l.Policy.Algorithm() != limiter.FixedWindow ||
		!cmp.Equal(quota.Metadata, map[string]any{"a": 1.5, "b": []any{"x", true, nil}}) ||
		quota.Source != file+": descriptors[0]" {
		t.Errorf("%+v, limit %+v", quota, l)
	}
	if l := both.Limits[0]; both.Mode != limiter.Shadow || l.Unit != descriptors.Month || l.Policy.Limit() != 0 ||
		!cmp.Equal(l.Replaces, []string{"named"}) {
		t.Errorf("%+v, limit %+v", both, l)
	}
	if free := d.Rule("free"); !free.Unlimited || len(free.Limits) > 0 {
		t.Errorf("%+v", free)
	}
	if d.Rule("year").Limits[0].Unit != descriptors.Year || len(d.Rule("none").Limits) > 0 {
		t.Error("year or none")
	}
}

// Rules that envoyproxy/ratelimit tolerates are active, with warnings.
func TestTolerated(t *testing.T) {
	replacing := func(key, name string, replaces ...string) *descriptor {
		d := partnertest.Limit(key, "", 1)
		d.RateLimit.Name = name
		for _, r := range replaces {
			d.RateLimit.Replaces = append(d.RateLimit.Replaces, &ratelimitv3.RateLimitReplace{Name: r})
		}
		return d
	}
	config := partnertest.Domain("d",
		replacing("unknown", "", "nobody"), replacing("a", "a", "b"), replacing("b", "b", "a"),
		partnertest.Limit("k", "*", 5), partnertest.Limit("k", "x*", 6),
	)
	if errs := check(descriptors.Process{}, file, config); len(errs) > 0 {
		t.Fatal(errs)
	}
	b := descriptors.NewBuilder(descriptors.Process{Lenient: true})
	add(b, file, config)
	set, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	for entry, want := range map[string]string{"unknown=x": "1", "a=x": "1", "k=xy": "5"} {
		if got := limitOf(set, entry); got != want {
			t.Errorf("%s: %s, want %s", entry, got, want)
		}
	}
	for _, w := range set.Warnings() {
		if w.Code != descriptors.WarnTolerated || !strings.HasPrefix(w.File, file+": descriptors[") {
			t.Errorf("%s: %s", w.Code, w)
		}
	}
	if n := len(set.Warnings()); n != 3 {
		t.Errorf("%d warnings, want 3: %s", n, set.Warnings())
	}
}

// 256 rules on one route, and 100 levels, are accepted.
func TestManyRulesAndLevels(t *testing.T) {
	route := partnertest.Node("route", "route")
	for i := range 256 {
		name := fmt.Sprintf("rule-%d-match-0", i)
		route.Descriptors = append(route.Descriptors, partnertest.Limit(name, name, uint32(i)))
	}
	deep := partnertest.Limit("k99", "v", 77)
	entries := []string{"k99=v"}
	for i := 98; i >= 0; i-- {
		deep = partnertest.Node(fmt.Sprintf("k%d", i), "", deep)
		entries = append([]string{fmt.Sprintf("k%d=x", i)}, entries...)
	}
	set := compile(t, route, deep)
	if got := limitOf(set, "route=route", "rule-255-match-0=rule-255-match-0"); got != "255" {
		t.Errorf("rule 255: %s", got)
	}
	if got := limitOf(set, entries...); got != "77" || len(entries) != 100 {
		t.Errorf("level %d: %s", len(entries), got)
	}
}

// Invalid rules get an error with their position.
func TestWrongRules(t *testing.T) {
	deep := partnertest.Limit("k", "", 1)
	for range 250 {
		deep = partnertest.Node("k", "", deep)
	}
	long := partnertest.Limit(strings.Repeat("k", 2<<20), "", 1)
	for range 150 {
		long = partnertest.Node(strings.Repeat("k", 2<<20), "", long)
	}
	for want, rule := range map[string]*descriptor{
		": descriptors[0]: the key is empty": partnertest.Limit("", "v", 1),
		": descriptors[0].descriptors[0].rate_limit.unit: unit is UNKNOWN; use SECOND": partnertest.Node("k", "", &descriptor{
			Key: "k", RateLimit: &policy{RequestsPerUnit: 1},
		}),
		".rate_limit.unit: unit is 99; use SECOND": {Key: "k", RateLimit: &policy{Unit: 99}},
		"metadata: a number is NaN or infinite": {Key: "k", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"a": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewNumberValue(math.NaN())}}),
		}}},
		"more than 200 levels of descriptors":                  deep,
		"the names of the rules up to here take more than 128": long,
	} {
		errs := check(descriptors.Process{}, file, partnertest.Domain("d", rule))
		if len(errs) == 0 || !strings.HasPrefix(errs.Error(), file+": ") || !strings.Contains(errs.Error(), want) {
			t.Errorf("%.300s, want %s", errs, want)
		}
	}
}

// Limits of a control plane, which have only a rate and a unit, get the fields of a default. A default that does not
// fit a limit refuses no rules.
func TestDefaults(t *testing.T) {
	b := descriptors.NewBuilder(descriptors.Process{})
	rulefile.Add(b, []rulefile.File{{Name: "defaults.yaml", Data: []byte(
		"defaults:\n- {for: {domain: d}, rate_limit: {align: calendar, time_zone: Europe/Berlin}}\n",
	)}})
	hourly, zero := partnertest.Limit("hourly", "", 3), partnertest.Limit("zero", "", 0)
	hourly.RateLimit.Unit, zero.RateLimit.Unit = ratelimitv3.RateLimitUnit_HOUR, ratelimitv3.RateLimitUnit_DAY
	minutely := partnertest.Limit("minutely", "", 3)
	minutely.RateLimit.Unit = ratelimitv3.RateLimitUnit_MINUTE
	add(b, file, partnertest.Domain("d", hourly, zero, minutely, &descriptor{Key: "free", RateLimit: &policy{Unlimited: true}}))
	add(b, file, partnertest.Domain("other", hourly))
	set, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"hourly":   "fixed_window: 3 per 1h, calendar of Europe/Berlin, default of defaults.yaml:2",
		"zero":     "fixed_window: 0 per 1d, calendar of Europe/Berlin, default of defaults.yaml:2",
		"minutely": "fixed_window: 3 per 1m",
	} {
		if got := set.Domain("d").Rule(path).Limits[0].String(); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if got := set.Domain("other").Rule("hourly").Limits[0]; got.Default != "" {
		t.Errorf("another domain: %s", got)
	}
	const warning = file + ": descriptors[2].rate_limit: the default at defaults.yaml:2:3 does not fit this limit and does not " +
		"apply to it: align: "
	w := set.Warnings()
	if len(w) != 1 || w[0].Code != descriptors.WarnDefault || !strings.HasPrefix(w[0].Error(), warning) {
		t.Errorf("%q, want %s", w, warning)
	}
}
