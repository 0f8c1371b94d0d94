// Package algorithms holds the pages about algorithms, and these tests that they say what the code does.
package algorithms

import (
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

func TestMain(m *testing.M) { casetest.Main(m, 100) }

// pageOf is the page of an algorithm: its name with hyphens.
func pageOf(a limiter.Algorithm) string { return strings.ReplaceAll(a.String(), "_", "-") + ".md" }

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestPages: each algorithm of the table has a page with the same sections, a drawing, and a row of the index.
func TestPages(t *testing.T) {
	index := read(t, "index.md")
	for _, a := range limiter.Algorithms() {
		page, name := read(t, pageOf(a)), pageOf(a)
		if !strings.HasPrefix(page, "# "+a.String()+"\n") {
			t.Errorf("%s does not begin with its algorithm's name", name)
		}
		for _, section := range []string{
			"## What it promises", "## Settings", "## Use it when", "## At the edges", "## Source",
			"](../img/algorithms/" + strings.TrimSuffix(name, ".md") + ".svg)", "algorithm: " + a.String(),
		} {
			if !strings.Contains(page, section) && (section != "algorithm: fixed_window") { // which rules need not name
				t.Errorf("%s has no %q", name, section)
			}
		}
		if !strings.Contains(index, "[`"+a.String()+"`]("+name+")") {
			t.Errorf("index.md has no row for %s", a)
		}
	}
}

// TestSettings: a page's table of settings has the fields that the algorithm takes, and no other. charge_denied is in
// costs.md, and in a table only if there is more to say.
func TestSettings(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\|")
	for _, a := range limiter.Algorithms() {
		_, rest, _ := strings.Cut(read(t, pageOf(a)), "\n## Settings\n")
		table, _, _ := strings.Cut(rest, "\n## ")
		got := map[string]bool{}
		for _, m := range row.FindAllStringSubmatch(table, -1) {
			got[m[1]] = true
		}
		want := map[string]bool{}
		for _, p := range a.Parameters() {
			want[p.Name] = true
		}
		if a == limiter.Funnel || a == limiter.TokenBucket {
			want["engine"] = true
		}
		delete(want, "charge_denied") // every algorithm takes it: costs.md
		delete(got, "charge_denied")
		if !maps.Equal(got, want) {
			t.Errorf("the settings of %s are %v, want %v", pageOf(a), slices.Sorted(maps.Keys(got)),
				slices.Sorted(maps.Keys(want)))
		}
	}
}

// formulas are the bounds that pages promise, of N hits per window, and what a limit of these parameters has.
var formulas = map[string]func(in limiter.Params, dearest int64) int64{
	"`N`":     func(in limiter.Params, _ int64) int64 { return in.Limit },
	"`2N`":    func(in limiter.Params, _ int64) int64 { return 2 * in.Limit },
	"`C + N`": func(in limiter.Params, _ int64) int64 { return in.Burst + in.Limit },
	"`N + D`": func(in limiter.Params, dearest int64) int64 { return in.Limit + dearest },
	"`N + min(N, segment_cap)`": func(in limiter.Params, _ int64) int64 {
		return in.Limit + min(in.Limit, in.SegmentCap)
	},
	"`N + S * N / W + D`": func(in limiter.Params, dearest int64) int64 {
		return in.Limit + int64(in.BurstFor)*in.Limit/int64(in.Window) + dearest
	},
}

// TestBounds: the formula of each page is the bound of limit.Bound, which the tests of pkg/limiter hold histories
// against.
func TestBounds(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| bound \\| (`[^`]+`)")
	for _, a := range limiter.Algorithms() {
		m := row.FindStringSubmatch(read(t, pageOf(a)))
		if m == nil || formulas[m[1]] == nil {
			t.Errorf("%s has no bound that this test knows: %v", pageOf(a), m)
			continue
		}
		rapid.Check(t, func(t *rapid.T) {
			in := limiter.Params{
				Algorithm: a, Limit: rapid.Int64Range(1, 100).Draw(t, "limit"),
				Window: time.Second * time.Duration(rapid.IntRange(1, 100).Draw(t, "window")),
			}
			if a.Takes("burst") {
				in.Burst = rapid.Int64Range(1, 100).Draw(t, "burst")
			}
			if a.Takes("segment_cap") {
				in.SegmentCap = rapid.Int64Range(1, in.Limit).Draw(t, "cap")
			}
			if a.Takes("burst_seconds") {
				in.BurstFor = time.Second * time.Duration(rapid.IntRange(1, 100).Draw(t, "saved"))
			}
			p, err := limiter.NewPolicy(in)
			if err != nil {
				t.Fatal(err)
			}
			dearest := rapid.Int64Range(1, 5).Draw(t, "dearest")
			if want := formulas[m[1]](in, dearest); limit.Bound(p, dearest) != want {
				t.Fatalf("%s says %s: %d for %+v and D = %d; the bound is %d", pageOf(a), m[1], want, in, dearest,
					limit.Bound(p, dearest))
			}
		})
	}
}

// TestIndexHasTheMeasuredFigures: bytes and Redis CPU of the index are those of docs/performance.md, rounded.
func TestIndexHasTheMeasuredFigures(t *testing.T) {
	measured, index := read(t, "../performance.md"), read(t, "index.md")
	const number = `([\d.]+)`
	for _, a := range limiter.Algorithms() {
		name := "`" + a.String() + "`"
		from := regexp.MustCompile(`(?m)^\| ` + name + ` \| \d+ ns \| ` + number + ` bytes \| [\d.]+ us \| ` + number +
			` us \| ` + number + ` bytes \|`).FindStringSubmatch(measured)
		to := regexp.MustCompile(`(?m)^\|[^|]*\| \[` + name + `\][^|]*\|[^|]*\| ` + number + `, ` + number + `[^|]*\| ` +
			number + ` us \|`).FindStringSubmatch(index)
		if from == nil || to == nil {
			t.Errorf("%s: performance.md has %v, index.md %v", a, from, to)
			continue
		}
		cpu, err := strconv.ParseFloat(from[2], 64)
		want := []string{from[1], from[3], strconv.Itoa(int(math.Round(cpu)))}
		if err != nil || !slices.Equal(to[1:], want) {
			t.Errorf("index.md has %v of %s, performance.md %v", to[1:], a, want)
		}
	}
}
