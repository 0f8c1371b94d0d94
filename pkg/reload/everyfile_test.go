package reload_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/pkg/reload"
)

// put writes files, each "path" or "path -> target" for a link.
func put(t *testing.T, dir string, files ...string) {
	t.Helper()
	for _, f := range files {
		if path, target, isLink := strings.Cut(f, " -> "); isLink {
			must(t, os.Symlink(target, filepath.Join(dir, path)))
		} else {
			write(t, filepath.Join(dir, f), f)
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
		from reload.Files
		want []string
	}{
		{"only YAML", reload.Files{Paths: []string{dir + "/config"}}, []string{"config/h.yaml", "config/sub/c.yaml"}},
		{"every file", reload.Files{Paths: []string{dir + "/config"}, EveryFile: true}, []string{
			"config/a", "config/b.json", "config/h.yaml", "config/link/i", "config/sub/c.yaml",
		}},
		{"every file with the prefix", reload.Files{Paths: []string{dir}, EveryFile: true, Prefix: "config"}, []string{
			"config/a", "config/b.json", "config/h.yaml", "config/link/i", "config/sub/c.yaml", "config.d/e", "config.yaml",
			"config.yaml.bak",
		}},
		{
			"a prefix with a dot",
			reload.Files{Paths: []string{dir}, EveryFile: true, Prefix: "other.config"},
			[]string{"other/config/g.yaml"},
		},
		{"no such file", reload.Files{Paths: []string{dir}, EveryFile: true, Prefix: "limits"}, nil},
		{
			"no such directory",
			reload.Files{Paths: []string{dir + "/none"}, EveryFile: true, Absent: func() bool { return true }},
			nil,
		},
	} {
		got, err := c.from.Read(t.Context())
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
	gone := reload.Files{Paths: []string{dir + "/none"}, EveryFile: true, Absent: func() bool { return false }}
	_, err := gone.Read(t.Context())
	wantError(t, err, "none")
}
