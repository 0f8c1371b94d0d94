package cli

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// startServe runs weir serve in this process until the end of the test, and returns when it serves.
func startServe(t *testing.T, rules, socket string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	serving := make(chan struct{})
	log := &logged{want: "msg=serving", seen: func() { close(serving) }}
	ended := make(chan int, 1)
	go func() {
		var out strings.Builder
		ended <- run(ctx, []string{
			"serve", "--rules", rules, "--grpc-addr", "127.0.0.1:0", "--http-addr", socket,
			"--drain-delay", "0s",
		}, &out, log)
	}()
	select {
	case <-serving:
	case code := <-ended:
		t.Fatalf("serve ended with %d:\n%s", code, log.text.String())
	}
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != exitOK {
			t.Errorf("serve ends with %d", code)
		}
	})
}

// health, status, explain and reload of a process that runs, is fine, and has newer rules that are wrong. explain
// charges nothing.
func TestRunningProcess(t *testing.T) {
	dir := t.TempDir()
	rules, socket := filepath.Join(dir, "rules.yaml"), "unix:"+filepath.Join(dir, "http.sock")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("domain: shop\ndescriptors: [{key: client, rate_limit: {name: one, requests_per_unit: 1, unit: hour}}]\n")
	startServe(t, rules, socket)
	t.Setenv("WEIR_HTTP_ADDR", socket) // as in its container
	say := func(args string, code int, out, errs string) {
		t.Helper()
		var stdout, stderr strings.Builder
		got := run(t.Context(), strings.Fields(args), &stdout, &stderr)
		if got != code || !regexp.MustCompile(out).MatchString(stdout.String()) ||
			!regexp.MustCompile(errs).MatchString(stderr.String()) {
			t.Errorf("weir %s ends with %d:\n%s%s\nwant %d:\n%s\n%s", args, got, &stdout, &stderr, code, out, errs)
		}
	}
	say("health", exitOK, `^ready\nprocess: ok\nrules: ok\nstore: ok\n$`, `^$`)
	say("health --live", exitOK, `^ok\n$`, `^$`)
	say("health --format json", exitOK, `"healthy": true`, `^$`)
	say("status", exitOK,
		`^state +ready\nversion +.*\nstarted +.* ago\nquotas +off\nstore +memory\nrules +[0-9a-f]{12}, in force since .*: 1 domain, 1 rule, 1 limit\n$`, `^$`)
	say("status --format json", exitOK, `"ready": true`, `^$`)
	say("explain --domain shop client=eve --expect ok --expect one", exitOK,
		`(?s)fits \(allowed\), 1 remaining\n.*\nresponse +OK, with the current counters\n$`, `^$`)
	say("explain --domain shop client=eve --hits 2 --expect ok", exitFailed, "never fits",
		`^weir: --expect: expected OK, found OVER_LIMIT\n$`)
	say("reload", exitOK, `^reloaded: rules [0-9a-f]{12}, in force since .*\n$`, `^$`)
	write("domain: shop\ndescriptors: [{kay: client}]\n")
	say("reload", exitFailed, `^$`,
		`^.*rules.yaml:2:16: kay is not a field of a descriptor; did you mean key\?\nrefused; the old rules stay in force\n$`)
	say("reload --format json", exitFailed, `"result": "refused"`, `^$`)
	say("status", exitOK, `(?s)^state +ready\n.*\nrefused +newer rules, at .*: 1 error\n.*rules.yaml:2:16: kay`, `^$`)
	say("health", exitOK, `^ready\n`, `^$`)
	say("health --server unix:"+dir+"/nobody", exitFailed, `^$`, `^weir: no response from unix:.*nobody: `)
}
