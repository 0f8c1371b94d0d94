package peer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// step is a request, in short, and what both answer, in short.
type step struct {
	ask  string
	want string
}

// scenarios are what the peer's own tests promise, in which units no window ends.
var scenarios = []struct {
	name, rules string
	steps       []step
}{
	{
		name:  "a domain without rules",
		rules: "[]",
		steps: []step{{"hello=world", "OK - OK"}},
	},
	{
		name:  "each value has its counter",
		rules: "[{key: k, rate_limit: {unit: day, requests_per_unit: 2}}]",
		steps: []step{
			{"k=a", "OK - OK 1/2 DAY"},
			{"k=a", "OK - OK 0/2 DAY"},
			{"k=a", "OVER_LIMIT - OVER_LIMIT 0/2 DAY"},
			{"k=b", "OK - OK 1/2 DAY"},
			{"other=a", "OK - OK"},
		},
	},
	{
		name: "two limits, of which one is over",
		rules: `[{key: small, rate_limit: {unit: day, requests_per_unit: 1}},
  {key: large, rate_limit: {unit: hour, requests_per_unit: 5}}]`,
		steps: []step{
			{"small=a large=a", "OK - OK 0/1 DAY - OK 4/5 HOUR"},
			{"small=a large=a", "OVER_LIMIT - OVER_LIMIT 0/1 DAY - OK 3/5 HOUR"},
			{"large=a", "OK - OK 2/5 HOUR"},
		},
	},
	{
		name:  "costs, and a look",
		rules: "[{key: k, rate_limit: {unit: week, requests_per_unit: 10}}]",
		steps: []step{
			{"hits:4 k=a", "OK - OK 6/10 WEEK"},
			{"k=a+0", "OK - OK 6/10 WEEK"},
			{"hits:4 k=a+6", "OK - OK 0/10 WEEK"},
			{"k=a+0", "OK - OK 0/10 WEEK"},
			{"k=a", "OVER_LIMIT - OVER_LIMIT 0/10 WEEK"},
			{"k=a+0", "OVER_LIMIT - OVER_LIMIT 0/10 WEEK"},
			{"hits:11 k=b", "OVER_LIMIT - OVER_LIMIT 0/10 WEEK"},
			{"k=b", "OVER_LIMIT - OVER_LIMIT 0/10 WEEK"},
		},
	},
	{
		name: "nothing is let through, and everything",
		rules: `[{key: none, rate_limit: {unit: day, requests_per_unit: 0}},
  {key: all, rate_limit: {unlimited: true}}, {key: known}]`,
		steps: []step{
			{"none=a", "OVER_LIMIT - OVER_LIMIT 0/0 DAY"},
			{"none=a+0", "OVER_LIMIT - OVER_LIMIT 0/0 DAY"},
			{"all=a", "OK - OK 4294967295"},
			{"known=a", "OK - OK"},
		},
	},
	{
		name: "levels and values",
		rules: `[{key: a, value: x, rate_limit: {unit: day, requests_per_unit: 1},
    descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 2}}]},
  {key: a, rate_limit: {unit: day, requests_per_unit: 3}},
  {key: p, value: "f/*", rate_limit: {unit: day, requests_per_unit: 4}},
  {key: s, value: "f/*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}]`,
		steps: []step{
			{"a=x", "OK - OK 0/1 DAY"},
			{"a=x,b=1", "OK - OK 1/2 DAY"},
			{"a=y", "OK - OK 2/3 DAY"},
			{"a=y,b=1", "OK - OK"},
			{"a=x,b=1,c=1", "OK - OK"},
			{"p=f/1", "OK - OK 3/4 DAY"},
			{"p=f/2", "OK - OK 3/4 DAY"},
			{"p=g", "OK - OK"},
			{"s=f/1", "OK - OK 4/5 DAY"},
			{"s=f/2", "OK - OK 3/5 DAY"},
			{"b=1", "OK - OK"},
		},
	},
	{
		name: "a limit replaces another",
		rules: `[{key: a, rate_limit: {name: first, unit: day, requests_per_unit: 1}},
  {key: b, rate_limit: {name: second, unit: day, requests_per_unit: 2, replaces: [{name: first}]}},
  {key: c, rate_limit: {unlimited: true, name: third, replaces: [{name: first}, {name: second}]}}]`,
		steps: []step{
			{"a=1 b=1", "OK - OK - OK 1/2 second"},
			{"a=1", "OK - OK 0/1 first"},
			{"a=1 b=1 c=1", "OK - OK - OK - OK 4294967295"},
			{"a=1 b=1", "OK - OK - OK 0/2 second"},
		},
	},
	{
		name:  "a limit that only watches",
		rules: "[{key: a, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}]",
		steps: []step{{"a=1", "OK - OK 0/1 DAY"}, {"a=1", "OK - OK 0/1 DAY"}},
	},
	{
		name:  "a limit that comes with the request",
		rules: "[{key: a, rate_limit: {unit: day, requests_per_unit: 2}}]",
		steps: []step{
			{"a=1", "OK - OK 1/2 DAY"},
			{"a=1@5/DAY", "OK - OK 3/5 DAY"},
			{"a=1@4/DAY", "OK - OK 1/4 DAY"},
			{"a=1", "OVER_LIMIT - OVER_LIMIT 0/2 DAY"},
			{"a=1@3/YEAR", "OK - OK 2/3 YEAR"},
			{"b=1@1/DAY", "OK - OK 0/1 DAY"},
			{"b=1@1/DAY", "OVER_LIMIT - OVER_LIMIT 0/1 DAY"},
		},
	},
	{
		name:  "one counter twice",
		rules: "[{key: a, rate_limit: {unit: day, requests_per_unit: 3}}]",
		steps: []step{
			{"a=1 a=1", "OK - OK 2/3 DAY - OK 1/3 DAY"},
			{"a=1 a=1", "OVER_LIMIT - OK 0/3 DAY - OVER_LIMIT 0/3 DAY"},
		},
	},
}

// TestScenarios holds both to what the peer's own tests promise, in several environments.
func TestScenarios(t *testing.T) {
	for name, settings := range map[string]env{
		"plain":             {},
		"local cache":       {"LOCAL_CACHE_SIZE_IN_BYTES": "100000"},
		"Redis for seconds": {"REDIS_PERSECOND": "true"},
		"prefix":            {"CACHE_KEY_PREFIX": "prefix:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testScenarios(t, settings)
		})
	}
}

func testScenarios(t *testing.T, settings env) {
	t.Helper()
	files := map[string]string{}
	for i, s := range scenarios {
		files[fmt.Sprintf("%d.yaml", i)] = fmt.Sprintf("domain: domain%d\ndescriptors: %s\n", i, s.rules)
	}
	p := startPair(t, writeRules(t, files), settings)
	for i, sc := range scenarios {
		both := &series{pair: p}
		for j, step := range sc.steps {
			req := request(t, fmt.Sprintf("domain%d", i), step.ask)
			peer, weir := both.ask(t.Context(), req)
			if got := peer.short(); got != step.want {
				t.Errorf("%s, request %d, %s:\npeer %s\nwant %s", sc.name, j, step.ask, got, step.want)
			}
			if got := weir.short(); got != step.want {
				t.Errorf("%s, request %d, %s:\nweir %s\nwant %s", sc.name, j, step.ask, got, step.want)
			}
			for _, d := range differences(peer, weir) {
				t.Errorf("%s, request %d, %s: differ in %s", sc.name, j, step.ask, d)
			}
		}
	}
}

// TestReload changes the rules of both while they run: a file is added, changed and removed, one is broken.
func TestReload(t *testing.T) {
	file := func(domain string, perDay int) string {
		const text = "domain: %s\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: %d}}]\n"
		return fmt.Sprintf(text, domain, perDay)
	}
	root := writeRules(t, map[string]string{"a.yaml": file("a", 7)})
	p := startPair(t, root, env{})
	for i, change := range []struct{ file, text, domain, want string }{
		{"b.yaml", file("b", 9), "b", "OK - OK 8/9 DAY"},
		{"b.yaml", file("b", 5), "b", "OK - OK 4/5 DAY"},
		{"c.yaml", "domain: c\ndescriptors: [{key: k, nonsense: 1}]\n", "c", ""}, // refused: nothing changes
		{"c.yaml", file("c", 0), "c", "OVER_LIMIT - OVER_LIMIT 0/0 DAY"},
		{"b.yaml", "", "b", "OK - OK"},
	} {
		path := filepath.Join(root, "ratelimit", "config", change.file)
		if change.text == "" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, []byte(change.text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*service{p.peer, p.weir} {
			if change.want == "" {
				continue
			}
			deadline := time.Now().Add(patience)
			for n := 0; ; n++ {
				req := request(t, change.domain, fmt.Sprintf("k=%s-%d-%d", s.name, i, n))
				got := s.ask(t.Context(), req).short()
				if got == change.want {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("change %d: %s answers %s, want %s", i, s.name, got, change.want)
				}
				<-time.After(10 * time.Millisecond)
			}
		}
	}
}
