package launch

import (
	"os"
	"testing"
	"time"
)

// Go repeats a test if a program that it started has another time, and if it opened a file newer than now.
func TestBuildLetsGoReuseResults(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program: left out by -short")
	}
	t.Chdir(t.TempDir())
	write := func(file, text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	built := func() time.Time {
		path, err := Build("small", "cmd/small")
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	if err := os.MkdirAll("cmd/small", 0o700); err != nil {
		t.Fatal(err)
	}
	write("go.mod", "module small\n")
	write("cmd/small/main.go", "package main\n\nfunc main() {}\n")

	t.Setenv("TESTED_TREE", "")
	first := built()
	if info, err := os.Stat("bin/test/future"); err != nil || time.Until(info.ModTime()) < time.Hour {
		t.Errorf("without a digest: error %v, want a file of the future", err)
	}
	t.Setenv("TESTED_TREE", "tree-1")
	if again := built(); !again.Equal(first) {
		t.Errorf("the same program is from %s, then from %s", first, again)
	}
	write("cmd/small/main.go", "package main\n\nfunc main() { println() }\n")
	if changed := built(); changed.Equal(first) {
		t.Errorf("a changed program is still from %s", first)
	}
}
