package main

import (
	"fmt"
	"runtime/debug"

	"github.com/weir-ratelimit/weir/internal/app"
)

// Set by `go build -ldflags "-X main.version=v1.2.3 -X main.commit=..."`; without it, what Go itself has
// recorded in the binary.
var version, commit string

// versionCmd is `weir version`.
type versionCmd struct {
	Output outputFlags `embed:""`
}

// Help is shown below the one line of it.
func (*versionCmd) Help() string {
	return `Exit codes: 0 shown, 2 the command line is wrong.

Examples:

    weir version
    weir --version
    weir version --format json`
}

// Run prints one line.
func (c *versionCmd) Run(io streams) error {
	b := build()
	if c.Output.json() {
		return printJSON(io, b)
	}
	_, err := fmt.Fprintln(io.out, versionLine())
	return err
}

// versionLine is the build for people.
func versionLine() string {
	b := build()
	return fmt.Sprintf("weir %s (commit %s, %s)", b.Version, b.Commit, b.Go)
}

// build says what this binary was built from.
func build() app.Build {
	b := app.Build{Version: version, Commit: commit}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Go = info.GoVersion
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Commit == "" {
		b.Commit = recordedCommit(info.Settings)
	}
	return b
}

// recordedCommit is the commit that `go build` found, "unknown" if it did not look.
func recordedCommit(settings []debug.BuildSetting) string {
	commit, dirty := "unknown", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	return commit + dirty
}
