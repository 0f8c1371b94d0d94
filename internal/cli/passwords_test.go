package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// No message has the password of a store or the header of an xDS server, however malformed it is, wherever it stands.
func TestNoPasswordIsShown(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte("domain: d\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 1, unit: "+
		"hour}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const secret = "h4nter2"
	for i, url := range []string{
		"redis//:PASSWORD@h:6379", "redis//PASSWORD@h", "redis:/:PASSWORD@h", "redis:PASSWORD@h", ":PASSWORD@h",
		"user:PASSWORD@h:6379/0",
		"redis://:PASSWORD@h:99999/0", "redis://:PASS/WORD@h/0", "redis://:PASS WORD@h/0", "redis://:PASS%ZZWORD@h/0",
		"rdis://:PASSWORD@h/0",
		"redis://u:PASSWORD", "redis://:PASSWORD@h/0?x=1", "redis://:PASS@WORD@h/x", "redis://:PASSWORD@",
		"redis+sentinel://:PASSWORD@h", "redis+sentinel://h/m?sentinel_password=x&PASSWORD", "PASSWORD",
		"redis://:x@h/PASSWORD", "redis://:x@h/0?pool_size=PASSWORD", "redis://:x@h/0?timeout=PASSWORD",
		"redis://:x@h/0?password_file=PASSWORD", "redis://h?password_command=PASSWORD", "redis://h?username_file=PASSWORD",
		"redis://:PASS-;PASS-WORD=x@h/0", "unix:///x?db=PASSWORD",
	} {
		url := strings.ReplaceAll(strings.ReplaceAll(url, "PASS", secret), "WORD", secret)
		for j, tc := range [][2]string{
			{"WEIR_STORE", url},
			{"WEIR_NAMED_STORE", url},
			{"WEIR_NAMED_STORE", "a=" + url},
			{"WEIR_NAMED_STORE", "a=redis://h/0;" + url},
			{"--store", url},
			{"--named-store", url},
			{"--named-store", "A=" + url},
			{"WEIR_XDS_HEADER", "authorization Bearer " + url},
			{"WEIR_XDS_HEADER", "a=b;Bearer " + url},
			{"WEIR_XDS_HEADER", "authorization: Basic " + url + "="},
			{"WEIR_XDS_NODE_METADATA", url},
			{"--xds-header", "Bearer " + url},
		} {
			if (i+j)%casetest.Pick(4, 1) != 0 {
				continue
			}
			t.Run(tc[0]+" "+tc[1], func(t *testing.T) {
				t.Setenv("WEIR_STORE", "redis://127.0.0.1:1/0")
				args := []string{"serve", "--rules", rules, "--grpc-addr", "nowhere", "--http-addr", ""} // so that it never starts
				if strings.HasPrefix(tc[0], "--") {
					args = append(args, tc[0]+"="+tc[1])
				} else {
					t.Setenv(tc[0], tc[1])
				}
				var out, log bytes.Buffer
				if code := run(t.Context(), args, &out, &log); code == 0 {
					t.Fatal("it starts")
				}
				if text := out.String() + log.String(); strings.Contains(text, secret) {
					t.Errorf("the password is shown:\n%s", text)
				}
			})
		}
	}
}

// What stands in a rule file reaches the terminal without what the terminal would obey, whichever command prints it.
func TestRuleFilesDoNotReachTheTerminal(t *testing.T) {
	t.Parallel()
	const evil = `"\e[31m\u202E\x9b2J\0"` // in YAML
	write := func(unit string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "\x1b[31m\u202e.yaml")
		if err := os.WriteFile(file, []byte("domain: d\ndescriptors: [{key: "+evil+", description: "+evil+
			", rate_limit: {name: "+evil+", requests_per_unit: 1, unit: "+unit+"}}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	hour, day, wrong := write("hour"), write("day"), write(evil)
	for _, args := range [][]string{
		{"check", wrong},
		{"check", "--format", "github", wrong},
		{"check", "--format", "json", wrong},
		{"diff", hour, day},
		{"diff", "--format", "json", hour, day},
		{"explain", "--rules", hour, "--domain", "d", "\x1b[31m\u202e\u009b2J\x00=a"},
		{"explain", "--format", "json", "--rules", hour, "--domain", "d", "\x1b[31m\u202e\u009b2J\x00=a"},
		{"simulate", "--rules", hour, "--traffic", "constant:1/s"},
	} {
		var out, log bytes.Buffer
		code := run(t.Context(), args, &out, &log)
		if text := out.String() + log.String(); strings.ContainsAny(text, "\x1b\u202e\u009b\x00") || !strings.Contains(text, "202e") {
			t.Errorf("%q exits with %d and prints %q", args, code, text)
		}
	}
}

// A key reaches the terminal without control characters and marks of direction: a client has sent its values.
func TestKeysDoNotReachTheTerminal(t *testing.T) {
	var got strings.Builder
	printLimit(streams{out: &got}, &adminapi.KeyLimit{Key: "funnel|shop|client=a\u202en\u009b2J\x1b[0m"})
	if text := got.String(); strings.ContainsAny(text, "\u009b\u202e\x1b") || !strings.Contains(text, `n\u009b2J\u001b[0m`) {
		t.Errorf("%q", text)
	}
}
