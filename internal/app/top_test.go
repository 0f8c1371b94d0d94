package app

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// Keys are counted by the process, stay over a reload with their rule, and go with it.
func TestTopKeys(t *testing.T) {
	o := options(t, rulesOf("1"))
	o.Top.PerRule = 10
	p := start(t, o)
	for range 3 {
		p.ask("ann")
	}
	top := func() []adminapi.TopKey {
		t.Helper()
		status, body := p.http("GET", "/top?by=denied")
		var found adminapi.TopKeys
		if err := json.Unmarshal([]byte(body), &found); err != nil || status != 200 {
			t.Fatalf("%d %v: %s", status, err, body)
		}
		return found.Keys
	}
	for _, rules := range []string{"", rulesOf("2")} {
		if rules != "" {
			writeFile(t, o.Rules[0], rules)
			if status, body := p.http("POST", "/reload"); status != 200 {
				t.Fatal(body)
			}
		}
		if got := top(); len(got) != 1 || got[0].Descriptor != "client=ann" || got[0].Hits != 3 || got[0].Denied != 2 {
			t.Fatalf("most denied with the rules %q: %+v", rules, got)
		}
	}
	writeFile(t, o.Rules[0], strings.ReplaceAll(rulesOf("2"), "client", "user"))
	if status, body := p.http("POST", "/reload"); status != 200 {
		t.Fatal(body)
	}
	if got := top(); len(got) != 0 {
		t.Errorf("of a rule that is gone: %+v", got)
	}
}
