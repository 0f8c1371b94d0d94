//go:build e2e

package docs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// runMark is in the pages whose commands TestPages runs.
const runMark = "<!-- A test runs the commands of this page. -->"

// TestPages runs the commands of every page with the mark, among them all pages of docs/tasks.
func TestPages(t *testing.T) {
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte(runMark)) {
			if filepath.Dir(page) == "tasks" && page != filepath.Join("tasks", "index.md") {
				t.Errorf("%s: no line %s", page, runMark)
			}
			continue
		}
		t.Run(nameOfPage(page), func(t *testing.T) {
			t.Parallel()
			podtest.RunPage(t, page, setting(t))
		})
	}
}

// nameOfPage returns what a page's test is called: per-client, or operate-failure where there is a task failure, too.
func nameOfPage(page string) string {
	dir, name := filepath.Split(strings.TrimSuffix(page, ".md"))
	if _, err := os.Stat(filepath.Join("tasks", name+".md")); err == nil && dir != "tasks/" {
		name = filepath.Base(dir) + "-" + name
	}
	return name
}

// goScript is the go of a page: it gets Weir from this repository. Everything else is the real go's.
const goScript = `#!/usr/bin/env bash
if [ "$*" = "get github.com/weir-ratelimit/weir@latest" ]; then
  exec GO mod edit -replace=github.com/weir-ratelimit/weir=ROOT
fi
exec GO "$@"
`

// fetchModules gets what go mod tidy of programs that use Weir wants, also what only tests of Weir's modules need.
const fetchModules = `go mod init example.com/hello
{ echo 'package main'; go -C "$0" list -f 'import _ "{{.ImportPath}}"' ./pkg/...; } >main.go
go mod edit -replace=github.com/weir-ratelimit/weir="$0" && go mod tidy`

// setting is where pages are run, without a network: with a go that gets modules from the module cache, as from a
// proxy.
func setting(t *testing.T) podtest.Setting {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	fetch := exec.Command("sh", "-euc", fetchModules, root)
	fetch.Dir = t.TempDir()
	if out, err := fetch.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	env, err := exec.Command(program, "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	dirs := strings.Fields(string(env))
	return podtest.Setting{
		Programs: map[string]string{"go": strings.NewReplacer("GO ", program+" ", "ROOT", root).Replace(goScript)},
		Env: []string{
			"GOCACHE=" + dirs[0], "GOMODCACHE=" + dirs[1], "GOTOOLCHAIN=local",
			"GOPROXY=file://" + filepath.ToSlash(dirs[1]) + "/cache/download", "GOSUMDB=off",
		},
	}
}
