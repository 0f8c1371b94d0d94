package reload

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// put writes files, each "path" or "path -> target" for a link.
func put(t *testing.T, dir string, files ...string) {
	t.Helper()
	for _, f := range files {
		path, target, isLink := strings.Cut(f, " -> ")
		path = filepath.Join(dir, path)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil && isLink {
			err = os.Symlink(target, path)
		} else if err == nil {
			err = os.WriteFile(path, []byte(f), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A directory that envoyproxy/ratelimit watches at its root: RUNTIME_APPDIRECTORY is config.
func TestEveryFile(t *testing.T) {
	dir := t.TempDir()
	put(t, dir,
		"config/a", "config/b.json", "config/sub/c.yaml", "config.yaml", "config.d/e", "configs/f.yaml",
		"other/config/g.yaml",
		"config/..2026/h.yaml", "config/..data -> ..2026", "config/h.yaml -> ..data/h.yaml", "config/.hidden", "README",
		"config.yaml.bak",
		"linked/i", "config/link -> ../linked")
	for _, c := range []struct {
		name string
		from Files
		want []string
	}{
		{"only YAML", Files{Paths: []string{dir + "/config"}}, []string{"config/h.yaml", "config/sub/c.yaml"}},
		{"every file", Files{Paths: []string{dir + "/config"}, EveryFile: true}, []string{
			"config/a", "config/b.json", "config/h.yaml", "config/link/i", "config/sub/c.yaml",
		}},
		{"every file with the prefix", Files{Paths: []string{dir}, EveryFile: true, Prefix: "config"}, []string{
			"config/a", "config/b.json", "config/h.yaml", "config/link/i", "config/sub/c.yaml", "config.d/e", "config.yaml",
			"config.yaml.bak",
		}},
		{
			"a prefix with a dot",
			Files{Paths: []string{dir}, EveryFile: true, Prefix: "other.config"},
			[]string{"other/config/g.yaml"},
		},
		{"no such file", Files{Paths: []string{dir}, EveryFile: true, Prefix: "limits"}, nil},
		{
			"no such directory",
			Files{Paths: []string{dir + "/none"}, EveryFile: true, Absent: func() bool { return true }},
			nil,
		},
	} {
		got, err := c.from.Read(context.Background())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var names []string
		for _, f := range got.Files {
			rel, _ := filepath.Rel(dir, f.Name)
			names = append(names, rel)
		}
		slices.Sort(names)
		slices.Sort(c.want)
		if !slices.Equal(names, c.want) {
			t.Errorf("%s: %q, want %q", c.name, names, c.want)
		}
	}
	_, err := Files{
		Paths: []string{dir + "/none"}, EveryFile: true,
		Absent: func() bool { return false },
	}.Read(context.Background())
	if err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a directory that is gone: error %v", err)
	}
}
