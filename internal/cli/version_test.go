package cli

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// What weir --version shows of each kind of build.
func TestVersionOfBuilds(t *testing.T) {
	const revision = "57ef4b2c1d0e57ef4b2c1d0e57ef4b2c1d0e57ef"
	vcs := []debug.BuildSetting{{Key: "vcs.revision", Value: revision}, {Key: "vcs.time", Value: "2026-11-22T14:44:58Z"}}
	end := ", go1.26.8, " + runtime.GOOS + "/" + runtime.GOARCH + ")"
	for name, tt := range map[string]struct {
		main            debug.Module
		settings        []debug.BuildSetting
		version, commit string
		want            string
	}{
		"release": {
			main: debug.Module{Version: "v0.1.0"}, settings: vcs,
			want: "v0.1.0 (commit " + revision + ", 2026-11-22T14:44:58Z" + end,
		},
		"changed files": {
			main: debug.Module{Version: "v0.1.1-0.20261122144458-57ef4b2c1d0e+dirty"},
			settings: append(vcs[:2:2],
				debug.BuildSetting{Key: "vcs.modified", Value: "true"}),
			want: "v0.1.1-0.20261122144458-57ef4b2c1d0e+dirty (commit " + revision + "-dirty, 2026-11-22T14:44:58Z" + end,
		},
		"go install of a release": {
			main: debug.Module{Version: "v0.1.0", Sum: "h1:abc="},
			want: "v0.1.0 (commit unknown" + end,
		},
		"without a repository": {main: debug.Module{Version: "(devel)"}, want: "(devel) (commit unknown" + end},
		"by the linker": {
			main: debug.Module{Version: "(devel)"}, version: "v0.1.0", commit: "57ef4b2",
			want: "v0.1.0 (commit 57ef4b2" + end,
		},
		"by the linker, in a repository": {
			main: debug.Module{Version: "(devel)"}, settings: vcs, version: "v0.1.0", commit: "57ef4b2",
			want: "v0.1.0 (commit 57ef4b2, 2026-11-22T14:44:58Z" + end,
		},
	} {
		b := buildOf(&debug.BuildInfo{GoVersion: "go1.26.8", Main: tt.main, Settings: tt.settings}, tt.version, tt.commit)
		if got := buildLine(&b); got != tt.want {
			t.Errorf("%s: %s\nwant %s", name, got, tt.want)
		}
	}
}
