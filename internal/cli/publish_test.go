package cli

import (
	"os"
	"regexp"
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

// After a FLUSHALL numbers are given out again: the hash behind the number tells the sets apart.
func TestExpectAfterFlush(t *testing.T) {
	server := redistest.Start(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = c.Close() })
	rules := t.TempDir() + "/rules.yaml"
	publish := func(key string, args ...string) (code int, out, problems string) {
		t.Helper()
		if err := os.WriteFile(rules, []byte("domain: shop\ndescriptors: [{key: "+key+"}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr strings.Builder
		code = run(t.Context(), append([]string{"publish", rules, "--store", server.URL()}, args...), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	if code, out, stderr := publish("a"); code != exitOK {
		t.Fatalf("%d, %s%s", code, out, stderr)
	}
	_, out, _ := publish("b", "--dry-run")
	seen := regexp.MustCompile(` --expect (1:[0-9a-f]{12})\n$`).FindStringSubmatch(out)
	if seen == nil {
		t.Fatalf("a dry run says %s", out)
	}
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if code, out, stderr := publish("other"); code != exitOK || !strings.HasPrefix(out, "published version 1: ") {
		t.Fatalf("%d, %s%s", code, out, stderr)
	}
	code, out, stderr := publish("b", "--expect", seen[1])
	want := "weir: not published: version 1 by .* is in force, but it has other content \\(hash [0-9a-f]{12}\\) than expected \\(" +
		strings.TrimPrefix(seen[1], "1:") +
		"\\): Redis was emptied or restored since; look at what it changes and publish again\n"
	if code != exitFailed || out != "" || !regexp.MustCompile("^"+want+"$").MatchString(stderr) {
		t.Errorf("%d, %s%s", code, out, stderr)
	}
	var rolled, why strings.Builder
	code = run(t.Context(), []string{"publish", "--rollback", seen[1], "--store", server.URL()}, &rolled, &why)
	if code != exitFailed || !strings.Contains(why.String(), "not published: version 1 has other content (1:") {
		t.Errorf("a roll back to %s: %d, %s%s", seen[1], code, rolled.String(), why.String())
	}
	// What is in force now, and, as before, the number alone.
	_, out, _ = publish("b", "--dry-run")
	now := regexp.MustCompile(` --expect (1:[0-9a-f]{12})\n$`).FindStringSubmatch(out)
	if code, out, stderr := publish("b", "--expect", now[1]); code != exitOK ||
		!strings.HasPrefix(out, "published version 2: ") {
		t.Errorf("%d, %s%s", code, out, stderr)
	}
	if code, out, stderr := publish("c", "--expect", "2"); code != exitOK ||
		!strings.HasPrefix(out, "published version 3: ") {
		t.Errorf("%d, %s%s", code, out, stderr)
	}
}
