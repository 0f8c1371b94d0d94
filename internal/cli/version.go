package cli

import (
	"cmp"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/app"
)

// Of Main; `make module` has the linker set version.
var version, commit string

// unknownCommit stands where a binary does not record its commit.
const unknownCommit = "unknown"

type versionCmd struct {
	Output outputFlags `embed:""`
}

func (*versionCmd) Help() string {
	return `Shows the version, the commit and its date, the version of Go, and the platform. A program that go install has
built from a released version shows the checksum of its module in place of the commit.

Exit codes: 0 shown, 2 the command line is wrong.

Examples:

    weir version
    weir --version
    weir version --format json`
}

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
	return "weir " + buildLine(&b)
}

// buildLine is a build in one line.
func buildLine(b *app.Build) string {
	var parts []string
	if b.Sum == "" || b.Commit != unknownCommit {
		parts = append(parts, "commit "+b.Commit)
	}
	if b.Sum != "" {
		parts = append(parts, "module "+b.Sum)
	}
	for _, part := range []string{b.Date, b.Go, b.Platform} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return fmt.Sprintf("%s (%s)", b.Version, strings.Join(parts, ", "))
}

// build says what this binary was built from.
func build() app.Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	return buildOf(info, version, commit)
}

// pseudoVersion is the version that Go gives to a commit without a tag: with its time in UTC, and its first characters.
var pseudoVersion = regexp.MustCompile(`[.-](\d{14})-([0-9a-f]{12})(\+dirty)?$`)

// buildOf is what the binary records, unless the linker was given something else.
func buildOf(info *debug.BuildInfo, linkedVersion, linkedCommit string) app.Build {
	b := app.Build{
		Version: cmp.Or(linkedVersion, info.Main.Version, "(devel)"), Commit: linkedCommit, Go: info.GoVersion,
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if linkedVersion == "" {
		b.Sum = info.Main.Sum
	}
	recorded, dirty := "", false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			recorded = s.Value
		case "vcs.time":
			b.Date = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if m := pseudoVersion.FindStringSubmatch(info.Main.Version); recorded == "" && m != nil {
		recorded = m[2]
		if at, err := time.Parse("20060102150405", m[1]); err == nil {
			b.Date = at.Format(time.RFC3339)
		}
	}
	switch {
	case b.Commit != "":
		if !strings.HasPrefix(recorded, b.Commit) {
			b.Date = ""
		}
	case recorded == "":
		b.Commit = unknownCommit
	case dirty:
		b.Commit = recorded + "-dirty"
	default:
		b.Commit = recorded
	}
	return b
}
