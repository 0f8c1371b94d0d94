//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// chartOf is the text alternative of the chart of all requests.
const chartOf = `(document.querySelector("#now-chart svg")?.getAttribute("aria-label") ?? "")`

// The charts move when requests come. After a restart of the service the page shows the new process.
func TestPageIsLive(t *testing.T) {
	t.Parallel()
	b := partnertest.StartBrowser(t)
	s := startWeir(t, ruleFile(t, pageRules))
	b.Look(1200, 1000, false)
	b.Open("http://" + s.HTTP + "/")
	b.Await(chartOf + `.startsWith("All requests, last 10 minutes: 0 allowed, 0 denied")`)
	if area := b.Text(`document.querySelector("#now-chart .denied").getAttribute("d")`); area != "" {
		t.Errorf("without requests the chart has columns: %s", area)
	}
	moves := func() {
		askOf(t, s.client(t), 5, "remote_address", "10.0.0.1") // 3 pass
		b.Await(chartOf + `.includes("3 allowed, 2 denied, 1 near the limit; most denied at ")`)
	}
	moves()
	if area := b.Text(`document.querySelector("#now-chart .denied").getAttribute("d")`); !strings.HasPrefix(area, "M") {
		t.Errorf("the chart has no column for the denied: %q", area)
	}
	const denying = `document.getElementById("denying").innerText.replace(/\s+/g, " ")`
	b.Await(denying + ` === "remote_address shop · per-client: 2 denied"`)
	b.Await(`[...document.querySelectorAll("#rules-rows svg")].some((c) =>
		c.getAttribute("aria-label").startsWith("remote_address per-client, last 10 minutes: 3 allowed, 2 denied"))`)

	s.Kill()
	b.Await(`document.getElementById("state").innerText === "No response"`)
	s.Start()
	b.Await(`document.getElementById("state").innerText === "Ready" && document.getElementById("problem").hidden`)
	b.Await(chartOf + `.startsWith("All requests, last 10 minutes: 0 allowed, 0 denied")`) // the new process knows of none
	moves()
}

// The page of a rule shows its limits, where it is written, its chart and keys, and explains a key.
func TestPageOfARule(t *testing.T) {
	t.Parallel()
	b := partnertest.StartBrowser(t)
	s := startWeir(t, ruleFile(t, pageRules))
	client := s.client(t)
	askOf(t, client, 5, "remote_address", "10.0.0.1")
	askOf(t, client, 2, "api_key", "alice")
	b.Look(1200, 1000, false)
	b.Open("http://" + s.Local() + "/")
	b.Await(`document.querySelectorAll("#rules-rows a").length === 4`)
	b.Eval(`[...document.querySelectorAll("#rules-rows a")].find((a) => a.textContent === "api_key").click()`)
	b.Await(`document.querySelectorAll("#rule-limits figure").length === 2 &&
		document.querySelectorAll("#top-rows tr").length === 1`)
	if title := b.Text("document.title"); title != "api_key · Weir" {
		t.Errorf("title %q", title)
	}
	b.Await(`document.querySelector("#rule-limits figcaption").innerText.includes("Last 10 minutes: 2 allowed, 0 denied")`)
	text := strings.Join(strings.Fields(b.Text(`document.getElementById("rule").innerText`)), " ")
	for _, want := range []string{
		"api_key Domain shop File, line ", "rules.yaml:4 Mode enforce: a request over the limit is denied",
		"Description what a customer has paid for Owner team-billing",
		"burst token_bucket: 50 per 1h, burst 100", "daily sliding_window: 100000 per 1d",
		"Since the start: 2 allowed, 0 denied.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page of the rule does not say %q:\n%s", want, text)
		}
	}
	if json := b.Text(`document.getElementById("rule-json").textContent`); !strings.Contains(json, "\n  \"path\": \"api_key\"") {
		t.Errorf("the compiled rule is shown as %s", json)
	}
	checkAccessible(t, b, 1200)
	b.Look(1200, 1000, false)

	b.Eval(`document.querySelector("#top-rows button").click()`)
	b.Await(`document.getElementById("explain-answer").innerText.startsWith("OK")`)
	if descriptor := b.Text(`document.getElementById("explain-descriptor").value`); descriptor != "api_key=alice" {
		t.Errorf("the explained descriptor is %q", descriptor)
	}
	b.Open("http://" + s.Local() + "/#/rule?domain=shop&rule=remote_address+%3E+path%3D%2Fcheckout*") // by its address
	b.Await(`document.getElementById("explain-descriptor").value === "remote_address=,path=/checkout*"`)
	b.Await(`document.getElementById("rule-facts").innerText.includes("shadow: counted, and never denied")`)
	b.Eval(`location.hash = "#/rule?domain=shop&rule=none"`)
	b.Await(`document.getElementById("rule-lost").innerText.startsWith("rule: domain \"shop\" has no rule \"none\"")`)
	b.Eval(`document.querySelector("#rule nav a").click()`)
	b.Await(`document.getElementById("rule").hidden && document.activeElement.id === "rules-title"`)
	for _, said := range b.Console() {
		if !strings.Contains(said, "404") { // Chromium's own line about the rule that is not there
			t.Errorf("the console says: %s", said)
		}
	}
}

// The page shows which published version this replica has, and hears of another one.
func TestPageOfPublishedRules(t *testing.T) {
	t.Parallel()
	b := partnertest.StartBrowser(t)
	redis := redistest.Start(t)
	if out, err := publish(t, redis, pageRules); err != nil {
		t.Fatal(err, out)
	}
	s := startWeir(t, "store", "--store", redis.URL())
	b.Look(1200, 1000, false)
	b.Open("http://" + s.Local() + "/")
	const facts = `document.getElementById("facts").innerText.replace(/\s+/g, " ")`
	b.Await(facts + `.includes("This replica has version 1, loaded ")`)
	if text := b.Text(facts); !strings.Contains(text, " Published rules version 1, by ") {
		t.Errorf("of the published rules the page says %s", text)
	}
	if out, err := publish(t, redis, strings.ReplaceAll(pageRules, "hour", "minute")); err != nil {
		t.Fatal(err, out)
	}
	b.Await(facts + `.includes("Published rules version 2, by ") && ` + facts + `.includes("This replica has version 2, loaded ")`)
	if note := b.Text(`document.getElementById("mesh").innerText`); !strings.Contains(note, "weir_rules_published_version") {
		t.Errorf("of other replicas the page says %q", note)
	}
}
