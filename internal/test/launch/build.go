package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// Build builds bin/test/NAME from the main package in a folder of the repository, such as cmd/sidecar, with further
// arguments of go build. Like the released program it does not use C, except for a library that C calls. Build returns
// the path. Only one process builds at a time. Go's test cache does not track the program, so a test that starts it
// must run with -count=1.
func Build(name, folder string, args ...string) (path string, err error) {
	source, err := Above(folder)
	if err != nil {
		return "", err
	}
	root := filepath.Dir(filepath.Dir(source))
	dir := filepath.Join(root, "bin", "test")
	path, built := filepath.Join(dir, name), filepath.Join(dir, "built", name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.MkdirAll(filepath.Dir(built), 0o755)); err != nil {
		return "", err
	}
	lock, err := os.Create(path + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close() //nolint:errcheck // the file is empty; closing it releases the lock
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

// replace is a shell script. It runs go with the arguments after $1, which builds $0. If $0 differs from the file $1,
// it replaces $1 atomically, because tests of other packages may be about to start $1.
const replace = `path=$1 && shift
go "$@"
cmp -s "$0" "$path" || { cp "$0" "$path.new" && mv "$path.new" "$path"; }`
