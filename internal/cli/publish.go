package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// publishTimeout bounds the whole command.
const publishTimeout = 30 * time.Second

type publishCmd struct {
	Path string `arg:"" help:"Directory of rule files, or one rule file."`

	Store          string `env:"WEIR_STORE" required:"" placeholder:"URL" help:"URL of the Redis, as for serve; pass a password only in the variable."`
	StoreKeyPrefix string `env:"WEIR_STORE_KEY_PREFIX" default:"weir:" help:"Prefix of every key in Redis, as for serve."`
	DryRun         bool   `help:"Check and show what would change, but publish nothing."`
	Author         string `env:"WEIR_PUBLISH_AUTHOR,USER" default:"unknown" placeholder:"NAME" help:"Author to store with the rules."`

	Output outputFlags `embed:""`
}

func (*publishCmd) Help() string {
	return `Checks rules and stores them in Redis as one set with a version. Every process with serve --rules store
loads the set within a second, as a whole or not at all.

The set consists of all *.yaml and *.yml files of the path, at most 8 MiB together, and replaces the previous set.
Rules with values_file cannot be published.

Redis keeps only the set in force, so to go back, publish the old files. Publish refuses if someone else has published
meanwhile. Unchanged files make no new version.

Exit codes: 0 published, or in force already; 1 refused (wrong rules, another set was published meanwhile, Redis does
not respond); 2 the command line is wrong, or the path cannot be read.

Examples:

    export WEIR_STORE=redis://:secret@redis:6379/0
    weir publish rules/ --dry-run
    weir publish rules/ --author "$CI_JOB_URL"`
}

func (c *publishCmd) Run(ctx context.Context, io streams) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM) // a signal ends the password_command
	defer stop()
	redis, err := store.ConnectForCommand(ctx, c.Store, c.StoreKeyPrefix)
	if err != nil {
		return usage(fmt.Errorf("--store: %w", err))
	}
	defer redis.Close() //nolint:errcheck // all responses have arrived
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	set, err := c.wanted(ctx, io)
	if err != nil {
		return err
	}
	return c.publish(ctx, io, rules.NewPublished(redis), set)
}

// wanted returns the set to publish, checked, without a version.
func (c *publishCmd) wanted(ctx context.Context, io streams) (*rules.PublishedSet, error) {
	snapshot, err := reload.Paths(c.Path).Read(ctx)
	if err != nil {
		return nil, usage(err)
	}
	if _, err := compile(io, snapshot.Files, "; not published"); err != nil {
		return nil, err
	}
	var files []reload.File
	root := filepath.Clean(c.Path)
	for _, f := range snapshot.Files {
		name, err := filepath.Rel(root, f.Name) // relative to the directory
		if err != nil || name == "." {
			name = filepath.Base(f.Name) // the path is the file
		}
		files = append(files, reload.File{Name: filepath.ToSlash(name), Data: f.Data})
	}
	set, err := rules.NewPublishedSet(files, c.Author, time.Now())
	if err != nil {
		return nil, err
	}
	// Compile the set as a process will: under its names in Redis, without other files.
	_, err = compileQuietly(io, set.Named(), "; not published")
	return set, err
}

// publication is the JSON output of publish.
type publication struct {
	rules.PublishedInfo

	Result   string   `json:"result"`   // published, unchanged or dry_run
	Previous uint64   `json:"previous"` // version that was active before, or 0
	Added    []string `json:"added"`
	Changed  []string `json:"changed"`
	Removed  []string `json:"removed"`
}

func (c *publishCmd) publish(ctx context.Context, io streams, sets *rules.Published, set *rules.PublishedSet) error {
	before, err := sets.Current(ctx)
	isDamaged := errors.Is(err, rules.ErrDamaged)
	if isDamaged { // publishing replaces a damaged set
		fmt.Fprintf(io.err, "warning: %s\n", err)
	} else if err != nil && !errors.Is(err, rules.ErrNothingPublished) {
		return err
	}
	p := &publication{Result: "published", Previous: before.Version}
	p.Added, p.Changed, p.Removed = rules.DiffFiles(before.Files, set.Files)
	switch {
	case before.Version != 0 && before.Hash == set.Hash && !isDamaged:
		p.Result, set = "unchanged", before
	case c.DryRun:
		p.Result = "dry_run"
	default:
		if err := sets.Publish(ctx, set, before.PublishedInfo); err != nil {
			return err
		}
	}
	p.PublishedInfo = set.PublishedInfo
	return c.Output.print(io, p, func() { p.print(io) })
}

// print prints the publication as text.
func (p *publication) print(io streams) {
	of := fmt.Sprintf("%s, %s, hash %s, by %s", count(p.Files, "file"), count(p.Bytes, "byte"), reload.ShortHash(p.Hash),
		words.Line(p.Author))
	was := "nothing was in force"
	if p.Previous > 0 {
		was = fmt.Sprintf("version %d was in force", p.Previous)
	}
	switch p.Result {
	case "unchanged":
		fmt.Fprintf(io.out, "unchanged: version %d has these files and is in force (%s)\n", p.Version, of)
		return
	case "dry_run":
		fmt.Fprintf(io.out, "would publish %s; %s\n", of, was)
	default:
		fmt.Fprintf(io.out, "published version %d: %s; %s\n", p.Version, of, was)
	}
	for _, part := range []struct {
		word  string
		names []string
	}{{"added", p.Added}, {"changed", p.Changed}, {"removed", p.Removed}} {
		for _, name := range part.names {
			fmt.Fprintf(io.out, "  %-8s %s\n", part.word, name)
		}
	}
}
