package cli

import (
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// weir status shows the server of rules by xDS, whether it is there, and what of its newest answer is not used.
func TestStatusOfXDS(t *testing.T) {
	var s adminapi.Status
	s.Rules.XDS = &adminapi.XDSStatus{
		Server: "xds://gateway:18001", Version: "12", Domains: 2, Error: "Unavailable: connection refused", RefusedDomains: 1,
		FindingCount: 12, Findings: []string{"xds://gateway:18001 domain shop: descriptors[1]: the key is empty"},
	}
	var text strings.Builder
	printStatus(&text, &s)
	for _, want := range []string{
		"xds        xds://gateway:18001, not connected, version 12: 2 domains\n           Unavailable: connection refused\n",
		"1 domain of the newest response refused, the last valid rules stay in force: 12 findings\nxds://gateway:18001 domain shop: descriptors[1]",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	s.Rules.XDS = &adminapi.XDSStatus{Server: "xds://gateway:18001", Connected: true, Version: "12", Domains: 1}
	text.Reset()
	printStatus(&text, &s)
	if want := "xds        xds://gateway:18001, connected, version 12: 1 domain\n"; !strings.Contains(text.String(),
		want) {
		t.Errorf("no %q in\n%s", want, &text)
	}
}

// weir get shows what a reservation charges at the start, and that less than the estimate is left.
func TestGetOfAReservation(t *testing.T) {
	limit := adminapi.KeyLimit{RetryAfter: new(float64), Estimate: 1000, AtMost: 5000}
	for remaining, next := range map[int64]string{999: "passes when 1000 remain", 1000: "passes now"} {
		var text strings.Builder
		limit.Remaining = remaining
		printLimit(streams{out: &text}, &limit)
		for _, want := range []string{"  reserves   1000 to 5000 at the start of a request\n", "  next       " + next + "\n"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("no %q in\n%s", want, &text)
			}
		}
	}
}

// weir status says first what is wrong, once, and does not call a process that decides requests not ready.
func TestStatusDegraded(t *testing.T) {
	for want, s := range map[string]*adminapi.Status{
		"state      ready\n": {Ready: true},
		"state      degraded\n           Redis unreachable: 2 deny\n           store: refused\n": {
			Degraded: "Redis unreachable: 2 deny", Problem: "Redis unreachable: 2 deny",
			Checks: []adminapi.Check{{Name: "store", Error: "refused"}},
		},
		"state      not ready\n           Weir is not ready: rules: none\nversion": {
			Problem: "Weir is not ready: rules: none", Checks: []adminapi.Check{{Name: "rules", Error: "none"}},
		},
	} {
		var text strings.Builder
		printStatus(&text, s)
		if !strings.HasPrefix(text.String(), want) {
			t.Errorf("the status is\n%s\nwant it to begin with\n%s", &text, want)
		}
	}
}

// weir status says whether quotas are assigned, and to how many Envoys.
func TestStatusOfQuotas(t *testing.T) {
	for want, quotas := range map[string]*adminapi.QuotaStatus{
		"quotas     off\n": nil,
		"quotas     on: 2 streams, 1 broken stream of Envoys, 12 buckets\n           40 requests passed before they " +
			"were charged; 4 of them are not charged yet\n": {
			Streams: 2, Broken: 1, Buckets: 12, Uncharged: 40, Debt: 4,
		},
	} {
		var text strings.Builder
		printStatus(&text, &adminapi.Status{Quotas: quotas})
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
}

// weir top shows keys in columns, and escapes what clients have sent.
func TestTopOfKeys(t *testing.T) {
	var text strings.Builder
	printTop(streams{out: &text}, &adminapi.TopKeys{KeptPerRule: 100, Keys: []adminapi.TopKey{
		{Domain: "shop", Rule: "remote_address", Descriptor: "remote_address=10.0.0.1", Hits: 5, Denied: 2, Share: 1},
		{Domain: "shop", Rule: "api_key", Descriptor: "api_key=\u202egnp.exe\x1b[31m\n", Hits: 2, Share: 0.5},
	}})
	const want = `HITS  DENIED  SHARE   DOMAIN  RULE            KEY
5     2       100.0%  shop    remote_address  remote_address=10.0.0.1
2     0       50.0%   shop    api_key         api_key=\u202egnp.exe\u001b[31m\u000a
2 keys since `
	if !strings.HasPrefix(text.String(), want) {
		t.Errorf("%s\nwant\n%s", &text, want)
	}
}
