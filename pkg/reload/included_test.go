package reload_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/reload"
)

// including returns the files that lines such as "values_file: name" refer to.
func including(f reload.File) (all []reload.Include) {
	number := 0
	for line := range strings.Lines(string(f.Data)) {
		number++
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "values_file: "); ok {
			all = append(all, reload.Include{
				Name: filepath.Join(filepath.Dir(f.Name), name),
				At:   fmt.Sprintf("%s:%d", f.Name, number),
			})
		}
	}
	return all
}

func TestIncludedFiles(t *testing.T) {
	dir := t.TempDir()
	rules, list := filepath.Join(dir, "r.yaml"), filepath.Join(dir, "list.txt")
	other := filepath.Join(dir, "deep", "other.txt")
	write(t, rules, "values_file: list.txt")
	write(t, list, "l1")
	write(t, other, "o1")
	for name, path := range map[string]string{"directory": dir, "file": rules} {
		t.Run(name, func(t *testing.T) {
			write(t, rules, "values_file: list.txt")
			write(t, list, "l1")
			files := reload.Files{Paths: []string{path}, Includes: including}
			l := follow(t, reload.Options[string]{Sources: []reload.Source{files}})
			if want := "values_file: list.txt+l1"; l.Get() != want {
				t.Fatalf("%q, want %q", l.Get(), want)
			}
			write(t, list, "l2")
			l.await(t, "values_file: list.txt+l2")
			write(t, list, "bad")
			l.awaitError(t, list+`: "bad" is bad`)
			write(t, list, "l2")
			l.await(t, "values_file: list.txt+l2")
			must(t, os.Remove(list))
			l.await(t, "values_file: list.txt") // for Compile to say
			replace(t, list, "l3")
			l.await(t, "values_file: list.txt+l3")
			write(t, rules, "values_file: deep/other.txt") // in place, and what it refers to is watched from now on
			l.await(t, "values_file: deep/other.txt+o1")
			time.Sleep(100 * time.Millisecond) // for the watch of it, which is a hint
			write(t, other, "o2")
			l.await(t, "values_file: deep/other.txt+o2")
			write(t, other, "o1")
			l.await(t, "values_file: deep/other.txt+o1")
			l.still(t)
		})
	}
}

func TestIncludedFileThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "r.yaml"), "values_file: list")
	must(t, os.Mkdir(filepath.Join(dir, "list"), 0o755))
	_, err := reload.Files{Paths: []string{dir}, Includes: including}.Read(t.Context())
	wantError(t, err, filepath.Join(dir, "list")+": not a regular file")
}

func TestIncludedFilesOfAConfigMap(t *testing.T) {
	dir := t.TempDir()
	configMap(t, dir, "1", map[string]string{"r.yaml": "values_file: list.txt", "list.txt": "l1"})
	files := reload.Files{Paths: []string{dir}, Includes: including}
	l := follow(t, reload.Options[string]{Sources: []reload.Source{files}})
	configMap(t, dir, "2", map[string]string{"r.yaml": "values_file: list.txt", "list.txt": "l2"})
	if e := l.next(t); e.Err != nil || e.Files != 2 || l.Get() != "values_file: list.txt+l2" {
		t.Fatalf("%+v, %q", e, l.Get())
	}
}

// An included file must not be reached through a link that leads out of the directories of the files that refer to it:
// its content would be shown as values of rules.
func TestIncludedFileThatLeadsOut(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	must(t, err)
	write(t, "secret", "s1")
	write(t, "rules/r.yaml", "values_file: list.txt")
	write(t, "rules/lists/l.txt", "l1")
	read := func(paths ...string) error {
		_, err := reload.Files{Paths: paths, Includes: including}.Read(t.Context())
		return err
	}
	link := func(to string) {
		must(t, os.RemoveAll("rules/list.txt"), os.Symlink(to, "rules/list.txt"))
	}
	for _, to := range []string{"../secret", filepath.Join(here, "secret")} {
		link(to)
		for _, path := range []string{"rules", "rules/r.yaml"} {
			wantError(t, read(path), "rules/r.yaml:1: rules/list.txt, which it refers to, leads by a symbolic link to "+
				filepath.Join(here, "secret")+", outside "+filepath.Join(here, "rules")+
				": put the file itself into that directory, or a link to a file in it")
		}
	}
	for _, to := range []string{"lists/l.txt", filepath.Join(here, "rules/lists/l.txt")} {
		link(to)
		must(t, read("rules"), read("rules/r.yaml"))
	}
	// A directory of rules that is itself reached by a link, with the list in it.
	write(t, "team/r.yaml", "values_file: own.txt")
	write(t, "team/own.txt", "o1")
	must(t, os.Symlink("../team", "rules/team"))
	must(t, read("rules"))
}
