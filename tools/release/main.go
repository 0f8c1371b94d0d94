// Command release builds a release of Weir: an archive, an SBOM and packages per platform, a multi-platform image as an
// OCI archive, a Homebrew formula, and checksums. It builds the commit, not the working directory, twice in different
// places, and fails unless both builds are identical. `make release` runs it. See docs/adr/0064.
//
//	release -out bin/release -ref HEAD
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "release:", err)
		}
		os.Exit(1)
	}
}

// options are the command line options.
type options struct {
	repo, ref, out string
	platforms      []platform
	quick          bool
	log            io.Writer
}

func run(ctx context.Context, args []string, log io.Writer) error {
	o := options{log: log}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(log)
	flags.StringVar(&o.repo, "repo", ".", "the git repository")
	flags.StringVar(&o.ref, "ref", "HEAD", "the commit or tag to build")
	flags.StringVar(&o.out, "out", "bin/release", "the directory to write to; what is in it is removed")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "what to build for")
	flags.BoolVar(&o.quick, "quick", false, "the second build takes from Go's cache what the first has compiled")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for name := range strings.SplitSeq(*platforms, ",") {
		goos, arch, ok := strings.Cut(name, "/")
		if !ok {
			return fmt.Errorf("-platforms: want OS/ARCH, got %q", name)
		}
		o.platforms = append(o.platforms, platform{goos, arch})
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return release(ctx, &o)
}

// release builds into -out. It creates the folder only if everything succeeds.
func release(ctx context.Context, o *options) (err error) {
	work, err := os.MkdirTemp("", "weir-release")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()

	first := filepath.Join(work, "first")
	if err := buildRelease(ctx, o, filepath.Join(first, "src"), filepath.Join(first, "out"), nil); err != nil {
		return err
	}
	// Build in another folder, at another time, in another time zone, and without compiled packages.
	second := filepath.Join(work, "the", "second", "build")
	env := []string{"TZ=Asia/Kathmandu"}
	if !o.quick {
		env = append(env, "GOCACHE="+filepath.Join(work, "cache"))
	}
	if err := buildRelease(ctx, o, filepath.Join(second, "src"), filepath.Join(second, "out"), env); err != nil {
		return fmt.Errorf("the second build: %w", err)
	}
	if err := compare(filepath.Join(first, "out"), filepath.Join(second, "out")); err != nil {
		return err
	}
	fmt.Fprintln(o.log, "built twice: both are the same")
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	if err := os.CopyFS(o.out, os.DirFS(filepath.Join(first, "out"))); err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(o.out, checksumFile))
	fmt.Fprintf(o.log, "%s:\n%s", o.out, sums)
	return err
}
