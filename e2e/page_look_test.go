//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// repeat calls send once, or with -update for 12 minutes, so that the charts have a past.
func repeat(send func(i int)) {
	send(0)
	for i, end := 1, time.Now().Add(12*time.Minute); *casetest.Update && time.Now().Before(end); i++ {
		time.Sleep(300 * time.Millisecond)
		send(i)
	}
}

// sendTraffic sends requests for all rules of testdata/page.yaml.
func sendTraffic(t *testing.T, client pb.RateLimitServiceClient) {
	t.Helper()
	askOf(t, client, 1, "api_key", "alice", "model", "large", "weir_start", "none")
	repeat(func(i int) {
		askOf(t, client, 1+rand.IntN(6+i/200), "api_key", []string{"alice", "bob", "carol"}[i%3])
		askOf(t, client, 1+rand.IntN(3), "remote_address", fmt.Sprint("192.0.2.", i%9))
		askOf(t, client, 1+rand.IntN(2), "remote_address", "198.51.100.7", "path", "/checkout/basket")
		reserve(t, client, "api_key", "alice", "model", "large")
	})
}

// reserve sends the start and the end of a request that costs 400 hits.
func reserve(t *testing.T, client pb.RateLimitServiceClient, keyValues ...string) {
	t.Helper()
	answer, err := client.ShouldRateLimit(t.Context(), question(keyValues...))
	if err != nil {
		t.Fatal(err)
	}
	token := answer.GetDynamicMetadata().GetFields()["weir_start"].GetStringValue()
	end := question(append(keyValues, "weir_start", token)...)
	end.HitsAddend = 400
	if _, err := client.ShouldRateLimit(t.Context(), end); err != nil {
		t.Fatal(err)
	}
}

// reserved matches the text about reservations on a rule's page.
var reserved = regexp.MustCompile(`charged [0-9,]+,000, corrected -[0-9,]+00, real/charged 0.40, 1 end without token`)

// fiveThousandRules has 5,000 rules, some of which have long names.
func fiveThousandRules() string {
	rules := []string{"domain: shop\ndescriptors:\n"}
	for i := range 5000 {
		rules = append(rules, fmt.Sprintf("- {key: api_key, value: customer-%d%s, owner: team-%d,"+
			" rate_limit: {requests_per_unit: %d, unit: year}}\n", i, strings.Repeat("unbroken", i%50/49*9), i%7, 20+5*i))
	}
	return strings.Join(rules, "")
}

// looks are the situations in which TestPageLooks looks at the page.
var looks = map[string]struct {
	state string
	pager float64 // number of buttons to other rules
	start func(t *testing.T) *weir
}{
	"traffic": {"Ready", 0, func(t *testing.T) *weir {
		s := startWeir(t, "testdata/page.yaml")
		sendTraffic(t, s.client(t))
		return s
	}},
	"redis-down": {"Degraded", 0, func(t *testing.T) *weir {
		redis := redistest.Start(t)
		s := startWeir(t, "testdata/page.yaml", "--store", redis.URL())
		sendTraffic(t, s.client(t))
		redis.Kill()
		askOf(t, s.client(t), 9, "api_key", "alice")
		return s
	}},
	"5000-rules": {"Ready", 2, func(t *testing.T) *weir {
		s := startWeir(t, ruleFile(t, fiveThousandRules()))
		client := s.client(t)
		repeat(func(i int) { askOf(t, client, 1+rand.IntN(4), "api_key", fmt.Sprint("customer-", i%40)) })
		return s
	}},
}

// cut lists the elements whose content is wider than they are. It opens what is folded.
const cut = `document.querySelectorAll("figure details").forEach((d) => d.open = true),
	[document.documentElement, ...document.querySelectorAll("body *:not(.skip, input)")]
	.filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1 && e.checkVisibility())
	.map((e) => e.tagName + " " + e.id + " " + e.textContent.slice(0, 50)).join("; ")`

// axes is the text of a chart's axes.
var axes = regexp.MustCompile(`^[125]0*(,000)*\s0\s\d\d:\d\d\slast \d\d minutes \(UTC\), requests in 30 s\s\d\d:\d\d$`)

// In each situation, on a wide screen and on a phone, light and dark, the page and a rule's page show everything whole,
// and axes that say what they show. -update writes docs/img/page.
func TestPageLooks(t *testing.T) {
	t.Parallel()
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := look.start(t)
			b := partnertest.StartBrowser(t)
			for width, height := range map[int]int{1280: 900, 390: 844} {
				b.Look(width, height, false)
				b.Open("http://" + s.Local() + "/")
				b.Await(`!!document.querySelector("#rules-rows a") && !!document.querySelector("#top-rows tr") &&
					document.getElementById("state").innerText === "` + look.state + `"`)
				shoot(t, b, name, width, height)
				checkWhole(t, b, width)
				if n := b.Eval(`document.querySelectorAll(".pager:not([hidden])").length`); n != look.pager {
					t.Errorf("%d px: %v buttons to other rules, want %v", width, n, look.pager)
				}
				b.Eval(`[...document.querySelectorAll("#rules-rows a")].at(-1).click()`)
				b.Await(`!!document.querySelector("#rule-limits figure")`)
				if name == "traffic" {
					shoot(t, b, "rule", width, height)
					if text := b.Text(`document.getElementById("rule-limits").innerText`); !reserved.MatchString(text) {
						t.Errorf("the reservation is described by %q", text)
					}
				}
				checkWhole(t, b, width)
			}
		})
	}
}

// checkWhole looks for what is cut or not accessible, and reads the axes of the first chart.
func checkWhole(t *testing.T, b *partnertest.Browser, width int) {
	t.Helper()
	if wide := b.Text(cut); wide != "" {
		t.Errorf("%d px: wider than its box: %s", width, wide)
	}
	text := b.Text(`[...document.querySelectorAll(".plot")].find((e) => e.offsetParent)?.innerText ?? ""`)
	if text = strings.Join(strings.Fields(text), " "); !axes.MatchString(text) {
		t.Errorf("%d px: the axes say %q", width, text)
	}
	checkAccessible(t, b, width)
}

// shoot writes pictures of the window in light and in dark, with the 128 most frequent of their colors.
func shoot(t *testing.T, b *partnertest.Browser, name string, width, height int) {
	t.Helper()
	if !*casetest.Update {
		return
	}
	for suffix, dark := range map[string]bool{"": false, "-dark": true} {
		b.Look(width, height, dark)
		b.Eval(`document.activeElement.blur()`)
		full, err := png.Decode(bytes.NewReader(b.Screenshot()))
		if err != nil {
			t.Fatal(err)
		}
		count := map[color.Color]int{}
		for y := range height {
			for x := range width {
				count[full.At(x, y)]++
			}
		}
		colors := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
		small := image.NewPaletted(full.Bounds(), colors[:min(128, len(colors))])
		draw.Draw(small, small.Bounds(), full, image.Point{}, draw.Src)
		var out bytes.Buffer
		if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small); err != nil {
			t.Fatal(err)
		}
		proctest.Replace(t, fmt.Sprintf("../docs/img/page/%s-%d%s.png", name, width, suffix), out.String())
	}
}

// A browser without a screen ends after its picture of the page, although the page never stops refreshing itself.
func TestPageHeadless(t *testing.T) {
	t.Parallel()
	s := startWeir(t, "testdata/page.yaml")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	chromium := proctest.Program(t, "chromium", "chromium-browser", "google-chrome")
	out, err := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
		"--virtual-time-budget=5000", "--screenshot="+filepath.Join(t.TempDir(), "page.png"), "http://"+s.HTTP).Output()
	if err != nil || !strings.Contains(string(out), ">Ready<") {
		t.Errorf("%v, the page is\n%s", err, out)
	}
}
