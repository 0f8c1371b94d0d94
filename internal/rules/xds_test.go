package rules_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Rules of files and of xDS are active together, even in one domain. A change of either is loaded, even if the other
// has errors.
func TestXDSBesideAFolder(t *testing.T) {
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	s.Set("1", partnertest.Domain("shop", partnertest.Limit("sent", "", 1)))
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(limit string) {
		t.Helper()
		text := "domain: shop\ndescriptors: [{key: own, rate_limit: {algorithm: funnel, unit: hour, requests_per_unit: " +
			limit + "}}]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1")
	r := load(t, rules.Options{Config: rules.Config{
		Rules: []string{file, "xds"}, XDS: xds.Options{Server: s.Addr, NodeID: "n"},
	}})
	limit := func(key string) int64 {
		if rule := r.Set().Domain("shop").Rule(key); rule != nil && len(rule.Limits) > 0 {
			return rule.Limits[0].Policy.Limit()
		}
		return -1
	}
	want := func(key string, n int64) {
		t.Helper()
		proctest.Await(t, patience, func() error {
			if limit(key) == n {
				return nil
			}
			_ = r.Reload(t.Context())
			return fmt.Errorf("%s is %d, want %d; %+v", key, limit(key), n, r.Status())
		})
	}
	want("own", 1)
	want("sent", 1)
	status := r.Status()
	if len(status.Files) != 2 || status.Files[1] != "xds://"+s.Addr+" domain shop" || status.XDS == nil ||
		status.XDS.Domains != 1 {
		t.Errorf("%+v", status)
	}
	if source := r.Set().Domain("shop").Rule("sent").Source; source != "xds://"+s.Addr+" domain shop: descriptors[0]" {
		t.Errorf("the rule's source is %q", source)
	}
	s.Set("2", partnertest.Domain("shop", partnertest.Limit("sent", "", 2)))
	want("sent", 2)
	write("3")
	want("own", 3)

	s.Set("3", partnertest.Domain("shop", partnertest.Limit("", "", 3)))
	proctest.Eventually(t, "findings", func() bool { return r.Status().XDS.FindingCount > 0 })
	series := partnertest.Series(t, r.Metrics()...)
	for name, value := range map[string]string{
		"weir_rules_xds_connected": "1", "weir_rules_xds_domains": "1", "weir_rules_xds_refused_domains": "1",
		"weir_rules_xds_findings": "1", "weir_rules_xds_connections_total": "1",
		`weir_rules_xds_answers_total{result="ok"}`: "2", `weir_rules_xds_answers_total{result="refused"}`: "1",
	} {
		if series[name] != value {
			t.Errorf("%s is %s, want %s", name, series[name], value)
		}
	}
	write("4")
	want("own", 4)
	if limit("sent") != 2 || len(r.Status().Errors) > 0 {
		t.Errorf("sent is %d; %q", limit("sent"), r.Status().Errors)
	}
	twice := "domain: shop\ndescriptors: [{key: own}, {key: own}]\n"
	if err := os.WriteFile(file, []byte(twice), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), file+":2:27: own is already given at") ||
		strings.Contains(err.Error(), "until then") {
		t.Errorf("a file is read as strictly as without xDS: %v", err)
	}
	write("x")
	if err := r.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), file+":") {
		t.Errorf("a wrong file: %v", err)
	}
	s.Set("4")
	write("5")
	want("own", 5)
	want("sent", -1)
}

// A file of defaults beside the control plane changes its limits, and an edit of the file changes them again. An update
// with a limit that the default does not fit is active all the same.
func TestDefaultsForXDS(t *testing.T) {
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	s.Set("1", partnertest.Domain("shop", partnertest.Limit("sent", "", 5000)))
	file := filepath.Join(t.TempDir(), "defaults.yaml")
	write := func(rateLimit string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("defaults: [{rate_limit: "+rateLimit+"}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("{algorithm: funnel, reservation: {estimate: 100}}")
	r := load(t, rules.Options{Config: rules.Config{
		Rules: []string{file, "xds"}, XDS: xds.Options{Server: s.Addr, NodeID: "n"},
	}})
	want := func(key, text string) {
		t.Helper()
		proctest.Await(t, patience, func() error {
			_ = r.Reload(t.Context())
			got := ""
			if rule := r.Set().Domain("shop").Rule(key); rule != nil {
				got = rule.Limits[0].String()
			}
			if got != text {
				return fmt.Errorf("%s is %s, want %s; %+v", key, got, text, r.Status())
			}
			return nil
		})
	}
	want("sent", "funnel: 5000 per 1h, burst 5000, reserves 100 to 2500, default of "+file+":1")
	s.Set("2", partnertest.Domain("shop", partnertest.Limit("sent", "", 6000), partnertest.Limit("small", "", 6)))
	want("sent", "funnel: 6000 per 1h, burst 6000, reserves 100 to 3000, default of "+file+":1")
	want("small", "fixed_window: 6 per 1h")
	write("{algorithm: sliding_log}")
	want("sent", "sliding_log: 6000 per 1h, default of "+file+":1")
}
