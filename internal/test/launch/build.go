package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Build builds bin/test/NAME of the main package in a folder of the repository, such as cmd/sidecar, with further
// arguments of go build: without C, as the released program is, but for a library that C calls. It returns the path.
// One process builds at a time. Go reuses the test's result only while the repository is the same, and never without
// make test.
func Build(name, folder string, args ...string) (path string, err error) {
	source, err := Above(folder)
	if err != nil {
		return "", err
	}
	root := filepath.Dir(filepath.Dir(source))
	dir := filepath.Join(root, "bin", "test")
	path, built := filepath.Join(dir, name), filepath.Join(dir, "built", name)
	// Not os.MkdirAll: the time of the folder, which each new program changes, would be an input of the test.
	if out, err := exec.Command("mkdir", "-p", filepath.Dir(path), filepath.Dir(built)).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if err := noteTree(filepath.Join(dir, "future")); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600) // os.Create would change its time
	if err != nil {
		return "", err
	}
	defer lock.Close() //nolint:errcheck // it is empty; closing it ends the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	args = append([]string{"-euc", replace, built, path, "build"}, append(args, "-o", built, "./"+folder)...)
	cmd := exec.Command("sh", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if slices.Contains(args, "c-shared") {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return path, nil
}

// replace runs go with its arguments but the first, and replaces that one by $0 only if they differ: go build gives a
// file a new time in any case, and Go does not reuse the result of a test that started a file with another time. A
// shell does it, since every file that the test's own process opens would be an input of the test.
const replace = `path=$1 && shift
go "$@"
cmp -s "$0" "$path" || { cp "$0" "$path.new" && mv "$path.new" "$path"; }`

// noteTree makes all files of the repository an input of the test, by their digest, which make test sets. Go reuses
// the result of no test that opened a file newer than now: without the digest this one opens the named file.
func noteTree(future string) error {
	if os.Getenv("TESTED_TREE") != "" {
		return nil
	}
	file, err := os.Create(future)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	newer := time.Now().AddDate(1, 0, 0)
	return os.Chtimes(future, newer, newer)
}
