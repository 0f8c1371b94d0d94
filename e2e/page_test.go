//go:build e2e

package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

const pageRules = `
domain: shop
descriptors:
  - key: api_key
    description: what a customer has paid for
    owner: team-billing
    rate_limits:
      - {name: burst, algorithm: token_bucket, requests_per_unit: 50, unit: hour, burst: 100}
      - {name: daily, algorithm: sliding_window, requests_per_unit: 100000, window: 24h, segments: 24}
  - key: remote_address
    description: one client
    owner: team-edge
    rate_limit: {name: per-client, algorithm: funnel, requests_per_unit: 3, unit: hour}
    descriptors:
      - key: path
        value: /checkout*
        shadow_mode: true
        rate_limit: {name: checkout, requests_per_unit: 1, unit: year}
  - key: internal
    rate_limit: {unlimited: true}
`

// hostileKeys are keys as an attacker may send them: none may become more than text.
var hostileKeys = []string{
	`<img src=x onerror="document.title='owned'">`,
	`"><script>document.title='owned'</script>`,
	"javascript:alert(1)//'`${1}",
	"\u202egnp.exe\x1b[31m\n",
}

// askOf sends n requests of one descriptor, key and value in turn.
func askOf(t *testing.T, client pb.RateLimitServiceClient, n int, keyValues ...string) {
	t.Helper()
	for range n {
		if _, err := client.ShouldRateLimit(t.Context(), question(keyValues...)); err != nil {
			t.Fatal(err)
		}
	}
}

// rowsOf are the texts of a table's rows, white space as one blank.
func rowsOf(t *testing.T, b *partnertest.Browser, id string) []string {
	t.Helper()
	text := b.Text(
		`[...document.querySelectorAll("#` + id + ` tr")].map((r) => r.innerText.replace(/\s+/g, " ")).join("\n")`,
	)
	return strings.Split(text, "\n")
}

// The page shows the state, the rules with their counts, and the busiest keys. What clients send stays text, the page
// loads nothing from elsewhere, and it works by keyboard.
func TestPage(t *testing.T) {
	t.Parallel()
	b := partnertest.StartBrowser(t)
	s := startWeir(t, ruleFile(t, pageRules))
	client := s.client(t)
	askOf(t, client, 5, "remote_address", "10.0.0.1")
	askOf(t, client, 2, "remote_address", "10.0.0.2")
	askOf(t, client, 3, "remote_address", "10.0.0.2", "path", "/checkout/1")
	for _, value := range hostileKeys {
		askOf(t, client, 1, "api_key", value)
	}
	b.Look(1200, 1000, false)
	b.Open("http://" + s.Local() + "/")
	b.Await(
		`document.querySelectorAll("#rules-rows tr").length === 5 && document.querySelectorAll("#top-rows tr").length === 7`,
	)

	if state := b.Text(`document.getElementById("state").innerText`); state != "Ready" {
		t.Errorf("state %q", state)
	}
	for _, want := range []string{
		"rules.yaml:10 funnel: 3 per 1h, burst 3 per-client 5 2 one client team-edge", // 3 and 2, then 2
		"remote_address > path=/checkout* shadow mode", "fixed_window: 1 per 365d checkout 1 2 shadow denied 2",
		"token_bucket: 50 per 1h, burst 100 burst 4 0", "sliding_window: 100000 per 1d daily 4 0", "unlimited",
	} {
		if rows := strings.Join(rowsOf(t, b, "rules-rows"), "\n"); !strings.Contains(rows, want) {
			t.Errorf("no rule says %q:\n%s", want, rows)
		}
	}
	top := rowsOf(t, b, "top-rows")
	if want := "remote_address=10.0.0.1 shop: remote_address Explain 5 2 71 %"; top[0] != want {
		t.Errorf("the busiest key is %q, want %q", top[0], want)
	}
	for _, value := range hostileKeys[:3] {
		if !slices.ContainsFunc(top, func(row string) bool { return strings.HasPrefix(row, "api_key="+value) }) {
			t.Errorf("%q is not shown as it is:\n%s", value, strings.Join(top, "\n"))
		}
	}
	if all := strings.Join(top, "\n"); !strings.Contains(all, `api_key=\u{202e}gnp.exe\u{1b}[31m\u{a}`) {
		t.Errorf("marks without a shape are not made visible:\n%s", all)
	}
	if b.Eval(`document.querySelectorAll("img, main script").length`) != 0.0 || b.Text("document.title") != "Weir" {
		t.Errorf("a key has become more than text: title %q", b.Text("document.title"))
	}

	for _, url := range b.URLs() {
		if !strings.HasPrefix(url, "http://"+s.Local()+"/") && url != "data:," {
			t.Errorf("the page asks for %s", url)
		}
	}
	for _, said := range b.Console() {
		t.Errorf("the console says: %s", said)
	}
	checkAccessible(t, b, 1200)
	checkKeyboard(t, b)
	checkExplain(t, b)
}

// checkExplain asks why a request is denied.
func checkExplain(t *testing.T, b *partnertest.Browser) {
	t.Helper()
	b.Eval(
		`document.getElementById("explain-domain").value = "shop",
			document.getElementById("explain-descriptor").value = "remote_address=10.0.0.1"`,
	)
	b.Eval(`document.getElementById("explain-descriptor").focus()`)
	b.Press("Enter")
	b.Await(`document.getElementById("explain-answer").innerText.startsWith("OVER_LIMIT")`)
	answer := b.Text(`document.getElementById("explain-answer").innerText`)
	for _, want := range []string{
		"rules.yaml:10", "per-client", "denied, 0 remaining, may pass in", "funnel|shop|remote_address=10.0.0.1",
	} {
		if !strings.Contains(answer, want) {
			t.Errorf("the explanation does not say %q:\n%s", want, answer)
		}
	}
	b.Eval(`document.getElementById("explain-descriptor").value = "<img src=x>"`)
	b.Press("Enter")
	b.Await(`document.getElementById("explain-answer").innerText.includes("<img src=x>")`)
	if b.Eval(`document.querySelectorAll("img, b").length`) != 0.0 {
		t.Error("what is explained has become more than text")
	}
}

// refreshNow does not wait for the next refresh of the page.
func refreshNow(b *partnertest.Browser) {
	b.Eval(`document.getElementById("auto").click(), document.getElementById("auto").click()`)
}

// checkAccessible runs axe-core, which finds what screen readers and weak eyes cannot read, in both color schemes.
func checkAccessible(t *testing.T, b *partnertest.Browser, width int) {
	t.Helper()
	axe, err := os.ReadFile("../.tools/venv/axe/axe_playwright_python/axe.min.js")
	if err != nil {
		t.Fatalf("%v: `scripts/tools.sh axe` installs axe-core", err)
	}
	b.Eval(string(axe) + "; 0")
	for _, dark := range []bool{false, true} {
		b.Look(width, 900, dark)
		if found := b.Text(violations); found != "" {
			t.Errorf("dark %t: axe-core finds\n%s", dark, found)
		}
	}
}

// violations are the findings of axe-core, with their elements.
const violations = `axe.run().then((r) => r.violations.map((v) => v.impact + " " + v.id + ": " +
	v.nodes.map((n) => n.html + " " + n.failureSummary).join("; ")).join("\n"))`

// checkKeyboard goes through the page by Tab, sees where the focus is, and opens a rule by Enter.
func checkKeyboard(t *testing.T, b *partnertest.Browser) {
	t.Helper()
	b.Look(1200, 1000, false)
	b.Eval(`document.activeElement.blur()`)
	var order []string
	for range 40 {
		b.Press("Tab")
		const focused = `(() => {
			const e = document.activeElement, outline = getComputedStyle(e).outlineStyle;
			return (e.id || e.ariaLabel || e.textContent) + (outline === "none" ? ": no outline" : "");
		})()`
		id := b.Text(focused)
		order = append(order, id)
		if strings.HasSuffix(id, ": no outline") {
			t.Errorf("the focus cannot be seen on %s", id)
		}
		if id == "explain-domain" {
			break
		}
	}
	rest := order
	for _, id := range []string{
		"Skip to the content", "home", "auto", "rules-search", "rules-sort", "remote_address", "top-by", "explain-domain",
	} {
		at := slices.Index(rest, id)
		if at < 0 {
			t.Fatalf("Tab leads to %q, want %s after the ones before", order, id)
		}
		rest = rest[at+1:]
	}
	b.Eval(`[...document.querySelectorAll("#rules-rows a")].find((a) => a.textContent === "remote_address").focus()`)
	b.Press("Enter")
	b.Await(`document.activeElement.id === "rule-title" && document.querySelectorAll("#top-rows tr").length === 2`)
	if only := b.Text(`document.getElementById("top-rule-name").innerText`); only != "Only shop: remote_address" {
		t.Errorf("the keys are of %q", only)
	}
	b.Eval(`history.back()`)
	b.Await(`!document.getElementById("rules").hidden && document.querySelectorAll("#top-rows tr").length === 7`)
}

// With 5,000 rules the page shows 50 at a time, and finds rules by a word.
func TestPageOfManyRules(t *testing.T) {
	t.Parallel()
	b := partnertest.StartBrowser(t)
	s := startWeir(t, ruleFile(t, fiveThousandRules()))
	client := s.client(t)
	askOf(t, client, 41, "api_key", "customer-4")
	b.Look(1200, 1000, false)
	b.Open("http://" + s.Local() + "/")
	b.Await(`document.getElementById("rules-range").innerText === "1 to 50 of 5,000"`)
	b.Eval(`document.getElementById("rules-on").click()`)
	b.Await(`document.getElementById("rules-range").innerText === "51 to 100 of 5,000"`)
	b.Eval(
		`(() => { const s = document.getElementById("rules-sort"); s.value = "denied";
			s.dispatchEvent(new Event("change")); })()`,
	)
	b.Await(
		`document.getElementById("rules-range").innerText.startsWith("1 to") &&
			document.querySelector("#rules-rows .path").innerText === "api_key=customer-4"`,
	)
	b.Eval(`document.getElementById("rules-search").focus()`)
	for key := range strings.SplitSeq("customer-777 TEAM-0", "") {
		b.Press(key)
	}
	b.Await(`document.getElementById("rules-range").innerText === "1 rule"`)
	if rows := strings.Join(rowsOf(t, b, "rules-rows"), "\n"); !strings.Contains(rows, "api_key=customer-777 ") {
		t.Errorf("found:\n%s", rows)
	}
}

// An open page says first what is wrong, in one sentence, then where other errors are, and when Weir is gone. On a
// phone, the problem and what is denied are on the first screen.
func TestPageTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := partnertest.StartBrowser(t)
	file := ruleFile(t, pageRules)
	s := startWeir(t, file)
	b.Look(390, 844, false)
	b.Open("http://" + s.Local() + "/")
	b.Await(`document.getElementById("state").innerText === "Ready"`)
	proctest.Replace(t, file, strings.ReplaceAll(pageRules, "funnel", "funel")+"  - {value: <b>bold</b>}\n")
	askOf(t, s.client(t), 5, "remote_address", "10.0.0.1")
	b.Await(`!document.getElementById("problem").hidden && !!document.querySelector("#denying a")`) // at the next refresh
	sentence := b.Text(`document.getElementById("problem-text").innerText`)
	if out, err := proctest.RunWeir(t, "status", "--server", s.HTTP); err != nil || !strings.Contains(out, sentence) {
		t.Errorf("weir status does not say %q, but %v:\n%s", sentence, err, out)
	}
	more := b.Text(`document.getElementById("causes").innerText`)
	if !strings.Contains(sentence, "funel") || !strings.Contains(sentence, "rules.yaml:13:") ||
		!strings.HasSuffix(sentence, "(error 1 of 2)") || !strings.Contains(more, "rules.yaml:21:") {
		t.Errorf("the problem is %q, and more: %q", sentence, more)
	}
	const order = `["state", "problem", "now", "denying", "rules", "top", "explain", "status"]
		.map((id) => document.getElementById(id).getBoundingClientRect().top).every((y, i, all) => !i || all[i - 1] < y)`
	const isHigh = `document.getElementById("denying").getBoundingClientRect().bottom <= 844`
	if b.Eval(order) != true || b.Eval(isHigh) != true {
		t.Error("the problem or what is denied is not on the first screen")
	}
	if wide := b.Text(cut); wide != "" {
		t.Error("wider than the page:", wide)
	}
	checkAccessible(t, b, 390)
	s.Kill()
	refreshNow(b)
	b.Await(`document.getElementById("problem").innerText.startsWith("No valid response at") &&
		document.getElementById("state").innerText === "No response"`)
}
