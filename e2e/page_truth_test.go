//go:build e2e

package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
)

const twoLimitRules = `
domain: shop
descriptors:
  - key: api_key
    description: what a customer has paid for, with all its limits in one place
    owner: team-billing
    rate_limits:
      - {name: burst, algorithm: token_bucket, requests_per_unit: 1, unit: hour, burst: 100}
      - {name: hourly, algorithm: sliding_window, requests_per_unit: 30, unit: hour}
  - key: remote_address
    rate_limit: {name: per-client, algorithm: funnel, requests_per_unit: 3, unit: hour}
  - key: path
    value: /health
`

// The page counts what passed: a request that another limit denied did not.
func TestPageShowsWhatHolds(t *testing.T) {
	t.Parallel()
	b := partnertest.StartBrowser(t)
	s := startWeir(t, ruleFile(t, twoLimitRules))
	askOf(t, s.client(t), 161, "api_key", "alice") // 30 pass, the burst would let 100 pass
	b.Look(1200, 1000, false)
	b.Open("http://" + s.Local() + "/")
	b.Await(`document.querySelectorAll("#rules-rows tr").length === 4`)
	rows := strings.Join(rowsOf(t, b, "rules-rows"), "\n")
	for _, want := range []string{
		"burst 30 allowed here, denied by another limit: 131 0", "\nsliding_window: 30 per 1h hourly 30 131",
	} {
		if !strings.Contains(rows, want) {
			t.Errorf("no rule says %q:\n%s", want, rows)
		}
	}

	zone := regexp.MustCompile(`\d\d:\d\d:\d\d UTC`)
	for _, id := range []string{"facts", "fresh", "top-note"} {
		if text := b.Text(`document.getElementById("` + id + `").innerText`); !zone.MatchString(text) {
			t.Errorf("%s shows no time in UTC: %q", id, text)
		}
	}
	checkNoLimit(t, b)
}

// checkNoLimit explains requests to which no limit applies: the page says so, and does not call it a success.
func checkNoLimit(t *testing.T, b *partnertest.Browser) {
	t.Helper()
	for descriptor, want := range map[string]string{
		"path=/health":   "badge none: No limit applies",
		"nothing=here":   "badge none: No limit applies",
		"api_key=carol":  "badge good: OK",
		"api_key=alice":  "badge bad: OVER_LIMIT",
		"path=/health/x": "badge none: No limit applies",
	} {
		b.Eval(fmt.Sprintf(`document.getElementById("explain-answer").replaceChildren(),
			document.getElementById("explain-domain").value = "shop",
			document.getElementById("explain-descriptor").value = %q`, descriptor))
		b.Eval(`document.getElementById("explain-descriptor").focus()`)
		b.Press("Enter")
		b.Await(`!!document.querySelector("#explain-answer .badge")`)
		got := b.Text(
			`(() => { const e = document.querySelector("#explain-answer .badge"); return e.className + ": " + e.innerText; })()`,
		)
		if got != want {
			t.Errorf("%s is explained as %q, want %q", descriptor, got, want)
		}
	}
	checkAccessible(t, b, 1200)
}
