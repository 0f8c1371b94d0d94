package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/weir-ratelimit/weir/internal/app"
)

// Set by Main; `make module` sets version with the linker.
var version, commit string

// unknownCommit is shown if a binary does not record its commit.
const unknownCommit = "unknown"

// buildLine formats a build in one line.
func buildLine(b *app.Build) string {
	parts := []string{"commit " + b.Commit}
	for _, part := range []string{b.Date, b.Go, b.Platform} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return fmt.Sprintf("%s (%s)", b.Version, strings.Join(parts, ", "))
}

// build returns the build of this binary.
func build() app.Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	return buildOf(info, version, commit)
}

// buildOf returns the build that the binary has recorded. Values of the linker have precedence.
func buildOf(info *debug.BuildInfo, linkedVersion, linkedCommit string) app.Build {
	recorded := map[string]string{}
	for _, s := range info.Settings {
		recorded[s.Key] = s.Value
	}
	commit := recorded["vcs.revision"]
	if commit != "" && recorded["vcs.modified"] == "true" {
		commit += "-dirty"
	}
	return app.Build{
		Version: cmp.Or(linkedVersion, info.Main.Version, "(devel)"), Commit: cmp.Or(linkedCommit, commit, unknownCommit),
		Date: recorded["vcs.time"], Go: info.GoVersion, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}
