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
		"1 domain of the newest answer not used, the last good rules stay: 12 findings\nxds://gateway:18001 domain shop: descriptors[1]",
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
