//go:build e2e

package docs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/pagetest"
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
			pagetest.RunIn(t, page, setting(t))
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

// setting is where pages are run: with a go that gets modules from the module cache, as from a proxy. go mod tidy also
// wants modules that only tests of Weir's modules need: what the cache does not have comes from the usual proxy.
func setting(t *testing.T) pagetest.Setting {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	env, err := exec.Command(program, "env", "GOCACHE", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	dirs := strings.Fields(string(env))
	return pagetest.Setting{
		Programs: map[string]string{"go": strings.NewReplacer("GO ", program+" ", "ROOT", root).Replace(goScript)},
		Env: []string{
			"GOCACHE=" + dirs[0], "GOMODCACHE=" + dirs[1], "GOTOOLCHAIN=local",
			"GOPROXY=file://" + filepath.ToSlash(dirs[1]) + "/cache/download," + dirs[2], "GOSUMDB=off",
		},
	}
}
