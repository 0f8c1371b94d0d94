//go:build e2e

package peer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

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
