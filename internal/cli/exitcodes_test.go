package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// TestExitCodes ends every command in every way that its help states, and in no other: there is a case for each exit
// code, or the help does not state it.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const rule = "domain: shop\ndescriptors: [{key: client, rate_limit: {requests_per_unit: %, unit: hour}}]\n"
	rules := file("rules.yaml", strings.Replace(rule, "%", "1", 1))
	other := file("other.yaml", strings.Replace(rule, "%", "2", 1))
	wrong := file("wrong.yaml", "domain: shop\ndescriptors: [{kay: client}]\n")
	live := file("live.yaml", strings.Replace(rule, "%", "3", 1))
	missing, socket := filepath.Join(dir, "missing"), "unix:"+filepath.Join(dir, "http.sock")
	there, nobody := " --server "+socket+".admin", " --server unix:"+missing

	seen := map[string]map[int]bool{}
	check := func(code int, command, args string) {
		t.Helper()
		var out strings.Builder
		words := strings.Fields(command + " " + args)
		if got := run(t.Context(), words, &out, &out); got != code {
			t.Errorf("weir %s ends with %d, want %d:\n%s", strings.Join(words, " "), got, code, &out)
		}
		if seen[command] == nil {
			seen[command] = map[int]bool{}
		}
		seen[command][code] = true
	}
	// Before the one that stays: gRPC's log is set for a whole process.
	check(exitFailed, "serve", "--rules "+wrong+" --grpc-addr 127.0.0.1:0 --http-addr 127.0.0.1:0")
	check(exitUsage, "serve", "--rules "+missing)
	startServe(t, live, socket)
	seen["serve"][exitOK] = true // startServe checks it
	check(exitOK, "init", dir+"/new")
	check(exitFailed, "init", dir+"/new")
	check(exitUsage, "init", "--for nothing")
	check(exitOK, "check", rules)
	check(exitFailed, "check", wrong)
	check(exitUsage, "check", missing)
	check(exitOK, "schema", "")
	check(exitUsage, "schema", "--nothing")
	check(exitOK, "explain", "--rules "+rules+" --domain shop client=a --expect ok")
	check(exitFailed, "explain", "--rules "+rules+" --domain shop client=a --expect over")
	check(exitUsage, "explain", "--rules "+wrong+" --domain shop client=a")
	check(exitUsage, "explain", "--domain shop client=a"+nobody)
	check(exitOK, "diff", rules+" "+rules)
	check(exitFailed, "diff", rules+" "+other)
	check(exitUsage, "diff", rules+" "+wrong)
	const test = "{rules: [rules.yaml], domain: shop, tests: [{steps: [{request: client=a, expect: {decision: %}}]}]}"
	check(exitOK, "test", file("passes.yaml", strings.Replace(test, "%", "allowed", 1)))
	check(exitFailed, "test", file("fails.yaml", strings.Replace(test, "%", "denied", 1)))
	check(exitUsage, "test", wrong)
	check(exitOK, "simulate", "--rules "+rules+" --traffic constant:1/s --for 1s")
	check(exitFailed, "simulate", "--rules "+wrong+" --traffic constant:1/s")
	check(exitUsage, "simulate", "--rules "+missing+" --traffic constant:1/s")
	limits := file("limits.yaml", "{gateway: shop/edge, limits: [{name: all, allow: 1 per day}]}")
	check(exitOK, "generate istio", limits+" --output "+dir+"/istio")
	check(exitFailed, "generate istio", limits+" --output "+limits)
	check(exitFailed, "generate istio", wrong)
	check(exitUsage, "generate istio", missing)
	check(exitUsage, "generate istio", limits+" --selector app=front,tier=web")
	check(exitOK, "top", there)
	check(exitFailed, "top", nobody)
	check(exitUsage, "top", "--by nothing")
	check(exitOK, "get", "--domain shop client=a"+there)
	check(exitFailed, "get", "--domain shop nothing=a"+there)
	check(exitFailed, "get", "--domain shop client=a"+nobody)
	check(exitUsage, "get", "client=a")
	check(exitOK, "reset", "--domain shop client=a"+there)
	check(exitFailed, "reset", "--domain shop nothing=a"+there)
	check(exitUsage, "reset", there)
	check(exitUsage, "reset", "--domain shop client=a --token-file /nowhere"+there)
	check(exitOK, "status", there)
	check(exitFailed, "status", nobody)
	check(exitUsage, "status", "--nothing")
	check(exitOK, "health", there)
	check(exitFailed, "health", nobody)
	check(exitUsage, "health", "--nothing")
	check(exitOK, "reload", there)
	file("live.yaml", "domain: shop\ndescriptors: [{kay: client}]\n")
	check(exitFailed, "reload", there)
	check(exitUsage, "reload", "--nothing")
	check(exitOK, "migrate-env", file("env", "REDIS_SOCKET_TYPE=tcp\nREDIS_URL=redis:6379\n"))
	check(exitUsage, "migrate-env", missing)
	check(exitUsage, "migrate-env", file("wrong.env", "REDIS_TYPE=nothing\n"))

	if testing.Short() {
		t.Skip("publish needs a Redis")
	}
	redis := " --store " + redistest.Start(t).URL()
	check(exitOK, "publish", rules+redis)
	check(exitFailed, "publish", wrong+redis)
	check(exitUsage, "publish", missing+redis)

	for _, command := range leaves(parsedModel(t)) {
		name := strings.TrimPrefix(command.FullPath(), "weir ")
		stated := statedCodes(command)
		for code := range 3 {
			if _, ok := stated[code]; ok != seen[name][code] {
				t.Errorf("weir %s: its help states exit code %d: %t; a case shows it: %t", name, code, ok, seen[name][code])
			}
		}
	}
}
