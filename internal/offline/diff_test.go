package offline_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/offline"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func TestMain(m *testing.M) { casetest.Main(m, 100) }

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
	for _, tt := range casetest.Table[struct{ Name, Before, After, Want string }](t, "testdata/changes.yaml") {
		t.Run(tt.Name, func(t *testing.T) {
			if diff := cmp.Diff(tt.Want, told(t, shopOf+tt.Before, shopOf+tt.After)); diff != "" {
				t.Error(diff)
			}
			if same := told(t, shopOf+tt.After, shopOf+tt.After); same != "" {
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
