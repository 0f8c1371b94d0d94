package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	command      = "./cmd/sidecar"
	checksumFile = "SHA256SUMS"
)

// platform is a target of a build.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

// build is one commit built for one platform.
type build struct {
	platform platform
	src      string // folder with the commit's files
	binary   string // path of the program
	info     *buildinfo.BuildInfo
	version  string    // such as v0.1.0
	revision string    // hash of the commit
	date     time.Time // time of the commit, the only time in a release
	licenses []license // of all code in the program
}

// fileVersion returns the version for names of files, without the v.
func (b *build) fileVersion() string { return strings.TrimPrefix(b.version, "v") }

// fileName returns the name of a file for the platform.
func (b *build) fileName(ending string) string {
	return fmt.Sprintf("weir_%s_%s_%s%s", b.fileVersion(), b.platform.os, b.platform.arch, ending)
}

// buildRelease builds all files of a release into out, with the commit's files in src.
func buildRelease(ctx context.Context, o *options, src, out string, env []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil { //nolint:gosec // a release is public
		return err
	}
	if err := checkOut(ctx, o, src); err != nil {
		return err
	}
	var builds []*build
	for _, p := range o.platforms {
		start := time.Now()
		b, err := compile(ctx, p, src, filepath.Join(filepath.Dir(src), "bin"), env)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		builds = append(builds, b)
		if err := writeArchive(b, filepath.Join(out, b.fileName(".tar.gz"))); err != nil {
			return err
		}
		if err := writeSBOM(b, filepath.Join(out, b.fileName(".cdx.json"))); err != nil {
			return err
		}
		fmt.Fprintf(o.log, "%s %s: %s\n", b.version, p, time.Since(start).Round(time.Second))
	}
	if err := writeImage(builds, out); err != nil {
		return err
	}
	if err := writePackages(ctx, builds, out); err != nil {
		return err
	}
	return writeChecksums(out)
}

// checkOut clones the commit into src. Go reads version, revision and date from that repository.
func checkOut(ctx context.Context, o *options, src string) error {
	commit, err := output(ctx, o.repo, nil, "git", "rev-parse", "--verify", o.ref+"^{commit}")
	if err != nil {
		return err
	}
	repo, err := output(ctx, o.repo, nil, "git", "rev-parse", "--path-format=absolute", "--git-common-dir")
	if err != nil {
		return err
	}
	if _, err := output(ctx, ".", nil, "git", "clone", "--quiet", "--no-checkout", "--shared", repo, src); err != nil {
		return err
	}
	_, err = output(ctx, src, nil, "git", "-c", "advice.detachedHead=false", "checkout", "--quiet", "--detach", commit)
	return err
}

// compile builds the program. -trimpath removes the paths of this machine. go build uses the profile
// cmd/sidecar/default.pgo.
func compile(ctx context.Context, p platform, src, bin string, env []string) (*build, error) {
	b := &build{platform: p, src: src, binary: filepath.Join(bin, p.os+"_"+p.arch, "weir")}
	env = append([]string{
		"GOOS=" + p.os, "GOARCH=" + p.arch, "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOAMD64=v1",
		"GOARM64=v8.0", "GOTOOLCHAIN=local",
	}, env...)
	_, err := output(ctx, src, env, "go", "build", "-trimpath", "-buildvcs=true", "-ldflags", "-s -w", "-o", b.binary,
		command)
	if err != nil {
		return nil, err
	}
	if b.info, err = buildinfo.ReadFile(b.binary); err != nil {
		return nil, err
	}
	b.version = b.info.Main.Version
	for _, s := range b.info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.revision = s.Value
		case "vcs.time":
			if b.date, err = time.Parse(time.RFC3339, s.Value); err != nil {
				return nil, err
			}
		case "vcs.modified":
			if s.Value != "false" {
				return nil, errors.New("the files are not those of the commit")
			}
		}
	}
	if b.version == "" || b.version == "(devel)" || b.revision == "" || b.date.IsZero() {
		return nil, fmt.Errorf("the program does not know its version (%q), revision (%q) or date (%s)",
			b.version, b.revision, b.date)
	}
	b.licenses, err = collectLicenses(ctx, b, env)
	return b, err
}

// output runs a program in a directory and returns its output without the trailing newline.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSuffix(stdout.String(), "\n"), nil
}
