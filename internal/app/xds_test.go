package app

import (
	"strconv"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/internal/test/xdstest"
)

// A process serves by rules that come by xDS, and shows where they come from and what is wrong with them.
func TestRulesByXDS(t *testing.T) {
	t.Parallel()
	s := xdstest.Start(t, xdstest.Options{})
	s.Set("1", xdstest.Domain("shop", xdstest.Limit("client", "", 1)))
	o := options(t, "")
	o.Rules = []string{"xds"}
	o.XDS = xds.Options{Server: s.Addr, NodeID: "weir"}
	p := start(t, o)
	if got := p.ask("a") + " " + p.ask("a"); got != "OK OVER_LIMIT" {
		t.Errorf("with a limit of 1: %s", got)
	}
	s.Set("2", xdstest.Domain("shop", xdstest.Limit("client", "", 0)), xdstest.Domain("other", xdstest.Limit("", "", 1)))
	clients := 0
	ask := func() string { // as a client of its own
		clients++
		return p.ask(strconv.Itoa(clients))
	}
	want(t, "a limit of 0", "OVER_LIMIT", ask)
	finding := "xds://" + s.Addr + " domain other: descriptors[0]: the key is empty"
	for _, path := range []string{"/rules", "/status"} {
		if _, body := p.http("GET", path); !strings.Contains(body, finding) ||
			!strings.Contains(body, `"refused_domains": 1`) {
			t.Errorf("GET %s has not %s:\n%s", path, finding, body)
		}
	}
	if _, body := p.http("GET", "/rules"); !strings.Contains(body, `"xds://`+s.Addr+` domain shop: descriptors[0]"`) {
		t.Errorf("GET /rules does not show the origin:\n%s", body)
	}
	_, metrics := p.http("GET", "/metrics")
	for _, line := range []string{
		"weir_rules_xds_connected 1\n", "weir_rules_xds_domains 1\n", "weir_rules_xds_refused_domains 1\n",
		`weir_rules_xds_answers_total{result="ok"} 2` + "\n",
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("GET /metrics has not %s", line)
		}
	}
	s.Set("3")
	want(t, "without rules", "OK", ask)
	s.Stop()
	want(t, "the connection", "false", func() string {
		if _, body := p.http("GET", "/status"); strings.Contains(body, `"connected": false`) {
			return "false"
		}
		return "true"
	})
	if got := p.ready(); got != "200" {
		t.Errorf("without the server /readyz is %s", got)
	}
}

// /healthcheck waits for the first answer of a control plane with --healthcheck-needs-load, even if that has no rules,
// and for rules with --healthcheck-needs-rules, also after they are gone.
func TestHealthcheckWithXDS(t *testing.T) {
	t.Parallel()
	s := xdstest.Start(t, xdstest.Options{})
	processes := map[string]*process{}
	for name, set := range map[string]func(*Options){
		"load":  func(o *Options) { o.HealthcheckNeedsLoad = true },
		"rules": func(o *Options) { o.HealthcheckNeedsRules = true },
		"none":  func(*Options) {},
	} {
		o := options(t, "")
		o.Rules, o.AllowEmptyRules = []string{"xds"}, true
		o.XDS = xds.Options{Server: s.Addr, NodeID: "weir"}
		set(&o)
		processes[name] = start(t, o)
	}
	wantAll := func(what, load, rules, none string) {
		t.Helper()
		for name, text := range map[string]string{"load": load, "rules": rules, "none": none} {
			want(t, what+", --healthcheck-needs-"+name, text, processes[name].healthcheck)
		}
	}
	const down, ok = "Internal Server Error", "OK OK"
	wantAll("before the first answer", down, down, ok)
	s.Set("1")
	wantAll("with no rules", ok, down, ok)
	s.Set("2", xdstest.Domain("shop", xdstest.Limit("client", "", 1)))
	wantAll("with rules", ok, ok, ok)
	s.Set("3")
	wantAll("after rules", ok, down, ok)
}
