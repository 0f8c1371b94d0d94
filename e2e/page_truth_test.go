//go:build e2e

package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/chrometest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
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
	b := chrometest.Start(t)
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

	zone := regexp.MustCompile(`\d\d:\d\d:\d\d.* (UTC|GMT[+-]?\S*|[A-Z]{3,5}\b)`)
	for _, id := range []string{"facts", "fresh", "top-note"} {
		if text := b.Text(`document.getElementById("` + id + `").innerText`); !zone.MatchString(text) {
			t.Errorf("%s shows a time without its zone: %q", id, text)
		}
	}
	shoot(t, b, "holds", 1200, 1300, false)
	checkContrast(t, b)
	checkNarrow(t, b)
	checkNoLimit(t, b)
}

// checkNarrow looks at the page as a phone shows it: no column needs scrolling to the side.
func checkNarrow(t *testing.T, b *chrometest.Browser) {
	t.Helper()
	b.Look(400, 900, false)
	const outside = `[...document.querySelectorAll("thead th")]
		.filter((h) => h.offsetParent && h.getBoundingClientRect().right > innerWidth)
		.map((h) => h.closest("section").id + ": " + h.innerText).join("; ")`
	if cut := b.Text(outside); cut != "" {
		t.Errorf("at 400 px these columns are off screen: %s", cut)
	}
	rows := strings.Join(rowsOf(t, b, "rules-rows"), "\n")
	if want := "what a customer has paid for, with all its limits in one place · team-billing"; strings.Count(rows,
		want) != 1 {
		t.Errorf("at 400 px no rule says once %q:\n%s", want, rows)
	}
	shoot(t, b, "narrow-holds", 400, 1600, false)
	b.Look(1200, 1000, false)
}

// checkNoLimit explains requests to which no limit applies: the page says so, and does not call it a success.
func checkNoLimit(t *testing.T, b *chrometest.Browser) {
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
	shoot(t, b, "no-limit", 1200, 1300, true)
	checkContrast(t, b)
}

// Many errors are numbered, and no number is cut off.
func TestPageNumbersErrors(t *testing.T) {
	t.Parallel()
	b := chrometest.Start(t)
	file := ruleFile(t, pageRules)
	s := startWeir(t, file)
	b.Look(1200, 1000, false)
	b.Open("http://" + s.Local() + "/")
	b.Await(`document.getElementById("state").innerText === "Ready"`)
	var wrong strings.Builder
	for range 120 {
		wrong.WriteString("  - {value: none}\n")
	}
	proctest.Replace(t, file, pageRules+wrong.String())
	await(t, 30*time.Second, "refused", func() bool { return s.Metric(`weir_rules_loads_total{result="refused"}`) > 0 })
	refreshNow(b)
	b.Await(`document.querySelectorAll("#refused-errors li").length === 100`)
	const room = `(() => {
		const list = document.getElementById("refused-errors"), style = getComputedStyle(list.firstElementChild);
		const pen = document.createElement("canvas").getContext("2d");
		pen.font = style.fontSize + " " + style.fontFamily;
		return parseFloat(getComputedStyle(list).paddingLeft) - pen.measureText("100. ").width;
	})()`
	if left, ok := b.Eval(room).(float64); !ok || left < 0 {
		t.Errorf("the numbers of the list are cut off by %v px", -left)
	}
	shoot(t, b, "numbers", 1200, 1000, false)
}
