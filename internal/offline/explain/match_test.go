package explain_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/offline/explain"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// TestMatchGolden explains what the lines "? domain | key=value | key=value" (with %XX) of each
// testdata/match/*.txt ask of the rules above them, and compares the answers with what is written below each.
func TestMatchGolden(t *testing.T) {
	cases, err := filepath.Glob("testdata/match/*.txt")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases in testdata/match: %v", err)
	}
	for _, path := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			const line = "---- explained ----\n"
			rules, questions, _ := strings.Cut(string(data), line)
			_, text, _ := strings.Cut(rules, "\n") // after ==== rules.yaml ====
			set := casetest.Compile(t, text)
			var got strings.Builder
			got.WriteString(rules + line)
			for q := range strings.Lines(questions) {
				if strings.HasPrefix(q, "? ") {
					got.WriteString(q)
					domain, es := asked(t, q)
					got.WriteString(described(casetest.Explain(t, set, domain, es)))
				}
			}
			if *casetest.Update {
				if err := os.WriteFile(path, []byte(got.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(data), got.String()); diff != "" && !*casetest.Update {
				t.Errorf("-want +got (go test -update writes it)\n%s", diff)
			}
		})
	}
}

func asked(t *testing.T, line string) (domain string, es []descriptors.Entry) {
	t.Helper()
	for i, part := range strings.Split(strings.TrimSpace(strings.TrimPrefix(line, "? ")), " | ") {
		text, err := url.PathUnescape(part)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			domain = text
			continue
		}
		key, value, _ := strings.Cut(text, "=")
		es = append(es, descriptors.Entry{Key: key, Value: value})
	}
	return domain, es
}

func described(x explain.Descriptor) string {
	var b strings.Builder
	for _, l := range x.Levels {
		fmt.Fprintf(&b, "    %s=%s is %s of %s at %s", l.Key, l.Value, l.By, l.Rule, l.Source)
		for _, source := range l.Also {
			fmt.Fprintf(&b, ", also %s", source)
		}
		b.WriteString("\n")
	}
	if x.Rule != nil {
		fmt.Fprintf(&b, "    rule %s\n", x.Rule.Source)
	}
	if x.Message != "" {
		fmt.Fprintf(&b, "    %s\n", x.Message)
	}
	return b.String()
}

// However many rules there are, an explanation is short and comes soon: sooner than the rules were compiled, however
// slow the machine is.
func TestMatchIsBounded(t *testing.T) {
	const rules = 30_000
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	limit := "}\n" // which would take most of the time
	for i := range rules / 3 {
		fmt.Fprintf(&b, "- {key: k, value: value%06d%s", i, limit)
		fmt.Fprintf(&b, "- {key: k, value: 'pattern%06d*'%s", i, limit)
		if i%50 == 27 { // they take long to compile
			fmt.Fprintf(&b, "- {key: k, regex: 'regex%06d[a-z]+'%s", i, limit)
		}
		fmt.Fprintf(&b, "- {key: key%06d%s", i, limit)
	}
	b.WriteString("- {key: address, cidr: [10.0.0.0/8]" + limit)
	begin := time.Now()
	set := casetest.Compile(t, b.String())
	compiled := time.Since(begin)
	long := strings.Repeat("value1", 10_000)
	begin = time.Now()
	for _, q := range []struct{ text, has string }{
		{"k=valu000077", `they match "value000077" (`},
		{"k=patern000077x", `they match "pattern000077*" (`},
		{"k=" + long, " and more"},
		{"kex000077=v", `the keys there are "key000077", `},
		{long + "=v", " and more"},
		{"k=value000077 k=value78 k=value79 k=value80 a=b k=value81", "there are no levels below"},
		{"a=b b=c c=d d=e e=f f=g g=h h=i i=j j=k k=l l=m", `the keys there are "k", `},
	} {
		x := casetest.Explain(t, set, "d", casetest.Entries(q.text))
		if len(x.Message) > 1000 || !strings.Contains(x.Message, q.has) {
			t.Errorf("Explain(%.40s) says %.1100s, want a short text with %s", q.text, x.Message, q.has)
		}
	}
	if took := time.Since(begin); took > 7*compiled {
		t.Errorf("7 explanations took %s, compiling the rules %s", took, compiled)
	}
}

// What has hash_values is not told to whoever asks for something like it.
func TestMatchKeepsSecrets(t *testing.T) {
	set := casetest.Compile(t, "domain: d\ndescriptors:\n- {key: api_key, values: [sk_live_1, sk_live_2], hash_values: "+
		"true}")
	x, _ := explain.MatchDescriptor(set, "d", casetest.Entries("api_key=sk_live_3"))
	if strings.Contains(x.Message, "sk_live_1") || !strings.Contains(x.Message, "their values are hashed, and not shown") {
		t.Errorf("it says %s", x.Message)
	}
}
