package app

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
)

// /healthcheck waits for the first answer of a control plane with --healthcheck-needs-load, even if that has no rules,
// and for rules with --healthcheck-needs-rules, also after they are gone.
func TestHealthcheckWithXDS(t *testing.T) {
	t.Parallel()
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
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
	s.Set("2", partnertest.Domain("shop", partnertest.Limit("client", "", 1)))
	wantAll("with rules", ok, ok, ok)
	s.Set("3")
	wantAll("after rules", ok, down, ok)
}
