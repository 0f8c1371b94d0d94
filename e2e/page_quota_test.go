//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
)

// The page shows what is assigned to a real Envoy, in the list of all buckets and on the page of a rule.
func TestPageOfQuotas(t *testing.T) {
	t.Parallel()
	dir := initialized(t, "quota")
	s := startWeir(t, filepath.Join(dir, "rules"), "--quota")
	front := startInitialized(t, dir, s).Listener("front")
	b := partnertest.StartBrowser(t)
	b.Look(1200, 1000, false)
	b.Open("http://" + s.Local() + "/")
	b.Await(`document.getElementById("quotas-rows").innerText.includes("No Envoy has a bucket here.")`)

	// Much more than 20 a second come to one rule, and few to the other: until Envoy has reported both.
	stop, done := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-done }()
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(8 * time.Millisecond):
			}
			starterRequest{path: "/search?q="}.send(t, front, n)
			if n%20 == 0 {
				starterRequest{path: "/"}.send(t, front, n)
			}
		}
	}()
	const row = `([...document.querySelectorAll("#quotas-rows tr")].map((r) => r.innerText.replace(/\s+/g, " "))
		.find((r) => r.startsWith("generic_key=%")) ?? "")`
	search, other := strings.Replace(row, "%", "search", 1), strings.Replace(row, "%", "other", 1)
	b.Await(`/^generic_key=search demo: generic_key=search 1 token_bucket: 20 per 1s, burst 20 [1-9]\d+\/s ` +
		`(20|19|1\d\.?\d*)\/s \d at once \d+\/s contended it wants more than its part of the limit$/.test(` + search + `)`)
	b.Await(`/^generic_key=other .* assigned$/.test(` + other + `)`)
	const sum = `document.getElementById("quotas-sum").innerText`
	if got := b.Text(sum); !strings.HasPrefix(got, "1 Envoy stream, 2 buckets") {
		t.Errorf("the sum is %q", got)
	}
	b.Await(`document.getElementById("facts").innerText.includes("1 Envoy stream, 2 buckets")`)
	// What the Envoy decided counts in the table of rules, in charts, and as a key.
	b.Await(`/by Envoys [1-9]/.test(document.querySelector("#rules-rows").innerText)`)
	b.Await(`!/: 0 allowed, 0 denied/.test(` + chartOf + `)`)
	b.Await(`document.getElementById("top-rows").innerText.includes("generic_key=search")`)
	checkAccessible(t, b)
	shoot(t, b, "quotas", 1200, 1900, false)
	shoot(t, b, "quotas-dark", 1200, 1900, true)
	shoot(t, b, "quotas-narrow", 360, 3200, false)
	b.Look(360, 900, false)
	if wide := b.Eval(`document.documentElement.scrollWidth`); wide != 360.0 {
		t.Errorf("the page is %v px wide", wide)
	}
	b.Look(1200, 1000, false)

	b.Eval(`location.hash = "#/rule?domain=demo&rule=generic_key%3Dother"`)
	b.Await(`document.querySelectorAll("#quotas-rows tr").length === 1 && ` + other + ` !== ""`)
	b.Await(`/; of these Envoys decided [1-9]/.test(document.getElementById("rule-limits").innerText)`)
	for _, said := range b.Console() {
		t.Errorf("the console says: %s", said)
	}
}
