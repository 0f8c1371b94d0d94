package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Build builds bin/test/NAME of the main package in a folder of the repository, such as cmd/sidecar, with further
// arguments of go build, or leaves it if it is up to date. It returns the path. One process builds at a time.
func Build(name, folder string, args ...string) (path string, err error) {
	source, err := Above(folder)
	if err != nil {
		return "", err
	}
	root := filepath.Dir(filepath.Dir(source))
	path = filepath.Join(root, "bin", "test", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(path + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close() //nolint:errcheck // it is empty; closing it ends the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	cmd := exec.Command("go", append(append([]string{"build"}, args...), "-o", path, "./"+folder)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	// The results of tests that look at a file are not reused when the file changes.
	_, err = os.Stat(path)
	return path, err
}
