package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without --rules a running process is asked, by its rules and on its counters, and is charged nothing.
func TestExplainAsksAProcess(t *testing.T) {
	dir := t.TempDir()
	rules, socket := filepath.Join(dir, "rules.yaml"), "unix:"+filepath.Join(dir, "http.sock")
	text := "domain: shop\ndescriptors: [{key: client, rate_limit: {name: one, requests_per_unit: 1, unit: hour}}]\n"
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	startServe(t, rules, socket)
	for _, tt := range []struct {
		args     string
		code     int
		out, err string
	}{
		{"--domain shop client=eve --expect ok --expect one", exitOK, "answer     OK, on the counters as they are now\n", ""},
		{"--domain shop client=eve", exitOK, "fits (allowed), 1 remaining\n", ""},
		{
			"--domain shop client=eve --hits 2 --expect ok", exitFailed, "never fits",
			"weir: --expect: expected OK, found OVER_LIMIT\n",
		},
		{"--domain shop Client=eve --format json --expect none", exitOK, `the keys there are \"client\"`, ""},
	} {
		var out, err strings.Builder
		code := run(t.Context(), append([]string{"explain", "--server", socket}, strings.Fields(tt.args)...), &out, &err)
		if code != tt.code || !strings.Contains(out.String(), tt.out) || !strings.Contains(err.String(), tt.err) {
			t.Errorf("explain %s ends with %d:\n%s%s\nwant %d:\n%s%s", tt.args, code, out.String(), err.String(), tt.code,
				tt.out, tt.err)
		}
	}
}
