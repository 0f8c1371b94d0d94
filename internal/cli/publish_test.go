package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// A version that cannot be read can be replaced, also by the same files.
func TestPublishOverDamage(t *testing.T) {
	server := redistest.Start(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = c.Close() })
	rules := t.TempDir() + "/rules.yaml"
	if err := os.WriteFile(rules, []byte("domain: shop\ndescriptors: [{key: a}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	publish := func(want, warning string) {
		t.Helper()
		var out, stderr strings.Builder
		code := run(t.Context(), []string{"publish", rules, "--store", server.URL()}, &out, &stderr)
		if code != exitOK || !strings.HasPrefix(out.String(), want) || !strings.Contains(stderr.String(), warning) {
			t.Fatalf("exit code %d, %q, %q; want %q and %q", code, out.String(), stderr.String(), want, warning)
		}
	}
	publish("published version 1: ", "")
	if err := c.HSet(t.Context(), "weir:1:rules", "files", "garbage").Err(); err != nil {
		t.Fatal(err)
	}
	publish("published version 2: ", `current is "1 `)
	publish("unchanged: version 2 ", "")
	for _, mark := range []string{"garbage", "0 x", "7 abc"} {
		if err := c.HSet(t.Context(), "weir:1:rules", "current", mark).Err(); err != nil {
			t.Fatal(err)
		}
		publish("published version ", "warning: weir:1:rules in redis://")
	}
}
