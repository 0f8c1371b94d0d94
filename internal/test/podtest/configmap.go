package podtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// ConfigMap is a directory in the form in which a kubelet mounts a ConfigMap or a Secret: files are links into the
// directory ..data, which is a link to the latest version and changes atomically.
type ConfigMap struct {
	Dir string

	version int
}

// Write writes a new version.
func (m *ConfigMap) Write(t *testing.T, data map[string]string) {
	t.Helper()
	old := fmt.Sprintf("..version_%d", m.version)
	m.version++
	version := fmt.Sprintf("..version_%d", m.version)
	err := os.MkdirAll(filepath.Join(m.Dir, version), 0o755)
	for name, text := range data {
		err = errors.Join(err, os.WriteFile(filepath.Join(m.Dir, version, name), []byte(text), 0o644))
	}
	next := filepath.Join(m.Dir, "..data_tmp")
	err = errors.Join(err, os.Symlink(version, next), os.Rename(next, filepath.Join(m.Dir, "..data")))
	for name := range data {
		link := filepath.Join(m.Dir, name)
		if _, e := os.Lstat(link); e != nil {
			err = errors.Join(err, os.Symlink(filepath.Join("..data", name), link))
		}
	}
	err = errors.Join(err, os.RemoveAll(filepath.Join(m.Dir, old)))
	if err != nil {
		t.Fatal(err)
	}
}
