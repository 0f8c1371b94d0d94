package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// patience is how long the demo may take to show all, or to end, on a busy machine.
const patience = proctest.Patience

// However its terminal goes away, the demo ends its programs and leaves nothing behind.
func TestDemoEndsWithItsTerminal(t *testing.T) {
	proctest.SkipIfShort(t, "Envoy and the built program")
	root := workspace(t)
	for name, tt := range map[string]struct {
		terminal bool   // a real one
		after    string // is in the last line that is read
	}{
		"terminal closes while it waits":   {true, "Ctrl-C ends the demo."},
		"terminal closes while it shows":   {true, "requests from"},
		"reader goes away while it writes": {false, "requests from"},
	} {
		t.Run(name, func(t *testing.T) {
			marker := "TMPDIR=" + t.TempDir()
			// A network of its own: the demo's ports are fixed.
			own := []string{"--net"}
			if os.Getuid() != 0 {
				own = append(own, "--map-root-user")
			}
			const demo = "ip link set lo up && exec bin/demo"
			cmd := exec.Command("unshare", append(own, "sh", "-c", demo)...)
			if tt.terminal {
				cmd = exec.Command("unshare", append(own, "script", "-qefc", demo, "/dev/null")...)
			}
			cmd.Dir, cmd.Env = root, append(os.Environ(), marker)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = cmd.Stdout
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { killAll(marker) })
			seen, err := readUntil(out, tt.after)
			if err != nil {
				t.Fatalf("%v after\n%s", err, seen)
			}
			if n := len(running(t, marker)); n < 3 {
				t.Fatalf("%d processes run, want the demo, the sidecar and Envoy", n)
			}
			if tt.terminal { // script has the terminal's other end
				err = cmd.Process.Kill()
			} else {
				err = out.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // ended by a signal, or with the error that it cannot write
			for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
				left := running(t, marker)
				if len(left) == 0 {
					break
				}
				if time.Since(start) > patience {
					t.Fatalf("still run: %q", left)
				}
			}
			files, err := filepath.Glob(filepath.Join(strings.TrimPrefix(marker, "TMPDIR="), "weir-demo*"))
			if err != nil || len(files) > 0 {
				t.Errorf("left behind: %v, %v", files, err)
			}
		})
	}
}

// workspace is a directory with the demo, the sidecar and what they need.
func workspace(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"unshare", "ip", "script", "../../.tools/venv/bin/envoy"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: scripts/tools.sh installs it (the packages util-linux, iproute2 and bsdutils)", err)
		}
	}
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "bin", "demo"), ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"bin/weir": proctest.WeirBinary(t), ".tools": filepath.Join(root, ".tools"), "examples": filepath.Join(root, "examples"),
	} {
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// readUntil reads lines until one has the text.
func readUntil(in io.Reader, text string) (seen string, err error) {
	found := make(chan error, 1)
	var all strings.Builder
	go func() {
		for lines := bufio.NewScanner(in); lines.Scan(); {
			all.WriteString(lines.Text() + "\n")
			if strings.Contains(lines.Text(), text) {
				found <- nil
				return
			}
		}
		found <- errors.New("the demo ended")
	}()
	select {
	case err := <-found:
		return all.String(), err
	case <-time.After(patience):
		return "", fmt.Errorf("no %q in %s", text, patience)
	}
}

// running are the processes whose environment has the marker, by their command lines; those that only wait to be reaped
// have no environment.
func running(t *testing.T, marker string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || len(all) == 0 {
		t.Fatalf("no /proc: %v", err)
	}
	for _, path := range all {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environ, []byte(marker)) {
			continue // it ended, or is somebody else's
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		found = append(found, filepath.Base(filepath.Dir(path))+" "+strings.ReplaceAll(string(line), "\x00", " "))
	}
	return found
}

// killAll ends what a failed test has left.
func killAll(marker string) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		if environ, err := os.ReadFile(path); err == nil && bytes.Contains(environ, []byte(marker)) {
			_ = exec.Command("kill", "-KILL", filepath.Base(filepath.Dir(path))).Run()
		}
	}
}
