package app

import (
	"testing"
)

// What a lenient process tolerates in rules is in the log, with its place.
func TestWarningsAreLogged(t *testing.T) {
	o := options(t, `domain: a
descriptors:
  - {key: x, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: x, rate_limit: {unit: minute, requests_per_unit: 2}}
  - key: y
    rate_limit: {unit: minute, requests_per_unit: 1, replaces: [{name: nope}]}
`)
	o.LenientRules = true
	p := start(t, o)
	for _, want := range []string{
		`msg="rules have warnings"`, "warning_count=2", "rules.yaml:4:5: x is already given at", "rules.yaml:6:65: replaces nope",
	} {
		if p.logged(want) != 1 {
			t.Errorf("the log has not %q once:\n%s", want, p.log)
		}
	}
}
