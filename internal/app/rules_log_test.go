package app

import (
	"path/filepath"
	"strings"
	"testing"
)

// A folder's files that look like rules and are not read are in the log, at the start and at a reload.
func TestUnreadFilesAreLogged(t *testing.T) {
	o := options(t, rulesOf("1"))
	dir := filepath.Dir(o.Rules[0])
	writeFile(t, filepath.Join(dir, "config.json"), `{"domain": "a", "descriptors": [{"key": "b"}]}`)
	o.Rules = []string{dir}
	p := start(t, o)
	const text = `msg="files that look like rules are not read" files=1 warnings="`
	want(t, "the warning", "true", func() string {
		if strings.Contains(p.log.String(), text) && strings.Contains(p.log.String(), "rename it to config.yaml") {
			return "true"
		}
		return "false"
	})
	writeFile(t, o.Rules[0]+"/rules.yaml", rulesOf("2"))
	want(t, "the warning at a reload", "2", func() string {
		if p.logged(text) == 2 {
			return "2"
		}
		if status, _ := p.http("POST", "/reload"); status != 200 {
			t.Fatalf("reload answers %d", status)
		}
		return "another number"
	})
}

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
		`msg="rules have warnings"`, "warning_count=2", "rules.yaml:4:5: x is already at", "rules.yaml:6:65: replaces nope",
	} {
		if p.logged(want) != 1 {
			t.Errorf("the log has not %q once:\n%s", want, p.log)
		}
	}
}
