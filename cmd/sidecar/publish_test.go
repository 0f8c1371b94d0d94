package main

import (
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/redistest"
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
		var out, told strings.Builder
		code := run(t.Context(), []string{"publish", rules, "--store", server.URL()}, &out, &told)
		if code != exitOK || !strings.HasPrefix(out.String(), want) || !strings.Contains(told.String(), warning) {
			t.Fatalf("exit code %d, %q, %q; want %q and %q", code, out.String(), told.String(), want, warning)
		}
	}
	publish("published version 1: ", "")
	if err := c.HSet(t.Context(), "weir:1:rules", "files:1", "garbage").Err(); err != nil {
		t.Fatal(err)
	}
	publish("published version 2: ", "version 1 is damaged: ")
	if err := c.HDel(t.Context(), "weir:1:rules", "files:2").Err(); err != nil {
		t.Fatal(err)
	}
	publish("published version 3: ", "there is no version 2, or no longer")
	publish("unchanged: version 3 ", "")
	for _, mark := range []string{"garbage", "0 x", "7 abc"} {
		if err := c.HSet(t.Context(), "weir:1:rules", "current", mark).Err(); err != nil {
			t.Fatal(err)
		}
		publish("published version ", "warning: weir:1:rules in redis://")
	}
}
