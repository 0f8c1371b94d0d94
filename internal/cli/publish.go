package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// publishTimeout bounds all of a publication.
const publishTimeout = 30 * time.Second

// redisFlags say which Redis a command works on.
type redisFlags struct {
	Store          string `env:"WEIR_STORE" required:"" placeholder:"URL" help:"URL of the Redis, as for serve. Pass a password by the variable: everybody on the machine can see a command line."`
	StoreKeyPrefix string `env:"WEIR_STORE_KEY_PREFIX" default:"weir:" help:"Start of every key in Redis, as for serve."`
}

type publishCmd struct {
	Path  string     `arg:"" optional:"" help:"Directory of rule files, or one rule file."`
	Redis redisFlags `embed:""`

	List     bool        `xor:"what" help:"Show the versions in Redis instead of publishing."`
	Rollback *setVersion `xor:"what" placeholder:"VERSION[:HASH]" help:"Publish the files of this version again, as a new version."`
	DryRun   bool        `help:"Check and show what would change, but publish nothing."`
	Expect   *setVersion `placeholder:"VERSION[:HASH]" help:"Publish only if this version, with this content, is in force; 0 for none. --list shows both. Without a hash, publish compares only the number, which repeats after Redis was emptied."`
	Stores   []string    `env:"WEIR_PUBLISH_STORES" placeholder:"NAME" help:"Names of serve's --named-store: a limit with another store is an error. Without it, any name is allowed, and a process without that store refuses the set."`
	Author   string      `env:"WEIR_PUBLISH_AUTHOR" placeholder:"NAME" help:"The author; $USER@host by default."`
	Keep     int         `env:"WEIR_PUBLISH_KEEP" default:"10" help:"How many versions to keep in Redis."`

	Output outputFlags `embed:""`
}

func (*publishCmd) Help() string {
	return `Checks a folder of rules and stores it in Redis as one set with a version. Every process with serve --rules
store loads it within a second, as a whole or not at all.

The set consists of the *.yaml and *.yml files that serve would read from that path, at most 8 MiB together. It
replaces the set before. Other files are not published, so a rule must not name one (values_file).

Publish refuses if somebody else has published in the meantime, or if --expect names another version than the one in
force. --dry-run prints the --expect of the set that it compared with; use it to publish exactly what you reviewed.
Files equal to those in force make no new version.

Exit codes: 0 published, or in force already; 1 refused (wrong rules, another version in force, Redis does not
answer); 2 the command line is wrong, or the path cannot be read.

Examples:

    export WEIR_STORE=redis://:secret@redis:6379/0
    weir publish rules/ --dry-run
    weir publish rules/ --author "$CI_JOB_URL" --expect 12:4f2ab09c11de
    weir publish --list
    weir publish --rollback 11`
}

func (c *publishCmd) Run(ctx context.Context, io streams) error {
	if err := c.validate(); err != nil {
		return usage(err)
	}
	redis, err := store.ConnectForCommand(c.Redis.Store, c.Redis.StoreKeyPrefix) //nolint:contextcheck // not yet
	if err != nil {
		return usage(fmt.Errorf("--store: %w", err))
	}
	defer redis.Close() //nolint:errcheck // everything was answered
	sets := rules.NewPublished(redis)
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if c.List {
		return c.list(ctx, io, sets)
	}
	set, err := c.wanted(ctx, io, sets)
	if err != nil {
		return err
	}
	return c.publish(ctx, io, sets, set)
}

func (c *publishCmd) validate() error {
	given := 0
	for _, is := range []bool{c.Path != "", c.List, c.Rollback != nil} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return errors.New("give one of a path, --list and --rollback VERSION")
	case c.Rollback != nil && c.Rollback.Version == 0:
		return errors.New("--rollback: must be a version from 1 on; --list shows them")
	case c.Keep < 1 || c.Keep > rules.MaxKeep:
		return fmt.Errorf("--keep: must be between 1 and %d, got %d", rules.MaxKeep, c.Keep)
	}
	return nil
}

// wanted is the set that is to be published: checked, and without a version.
func (c *publishCmd) wanted(ctx context.Context, io streams, sets *rules.Published) (*rules.PublishedSet, error) {
	files, shown, err := c.read(ctx, sets)
	if err != nil {
		return nil, err
	}
	if _, err := compile(io, shown, c.Stores, "; not published"); err != nil {
		return nil, err
	}
	set, err := rules.NewPublishedSet(files, cmp.Or(c.Author, defaultAuthor()), time.Now())
	if err != nil {
		return nil, err
	}
	if c.Rollback != nil {
		set.RollbackTo = c.Rollback.Version
	}
	// As a process will: under the names that the files have in Redis, with nothing beside them.
	_, err = compileQuietly(io, set.Named(), c.Stores, "; not published")
	return set, err
}

// read returns the files under the names that they have in the set, and under those that errors show.
func (c *publishCmd) read(ctx context.Context, sets *rules.Published) (files, shown []reload.File, err error) {
	if c.Rollback != nil {
		old, err := sets.Get(ctx, c.Rollback.Version)
		if err == nil && !c.Rollback.is(&old.PublishedInfo) {
			err = fmt.Errorf("not published: version %d has other content (%s) than expected (%s): Redis was emptied or "+
				"restored since; --list shows what there is", old.Version, mark(&old.PublishedInfo), c.Rollback)
		}
		if err != nil {
			return nil, nil, err
		}
		return old.Files, old.Named(), nil
	}
	snapshot, err := reload.Paths(c.Path).Read(ctx)
	if err != nil {
		return nil, nil, usage(err)
	}
	root := filepath.Clean(c.Path)
	for _, f := range snapshot.Files {
		name, err := filepath.Rel(root, f.Name) // with slashes in the set
		if err != nil || name == "." {
			name = filepath.Base(f.Name) // the path is the file
		}
		files = append(files, reload.File{Name: filepath.ToSlash(name), Data: f.Data})
	}
	return files, snapshot.Files, nil
}

// defaultAuthor is $USER@host.
func defaultAuthor() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return cmp.Or(os.Getenv("USER"), os.Getenv("LOGNAME"), "unknown") + "@" + host
}

// publication is what --format json prints.
type publication struct {
	rules.PublishedInfo

	Result   string `json:"result"`   // published, unchanged or dry_run
	Previous uint64 `json:"previous"` // the version that was in force; 0: none
	// PreviousHash is of its content.
	PreviousHash string   `json:"previous_hash,omitempty"`
	Added        []string `json:"added"`
	Changed      []string `json:"changed"`
	Removed      []string `json:"removed"`

	path string // that is published; empty for a roll back
}

func (c *publishCmd) publish(ctx context.Context, io streams, sets *rules.Published, set *rules.PublishedSet) error {
	before, err := sets.Current(ctx)
	damaged, isDamaged := errors.AsType[*rules.DamagedError](err)
	switch {
	case errors.Is(err, rules.ErrNothingPublished):
		before, err = &rules.PublishedSet{}, nil
	case isDamaged: // it can be replaced
		fmt.Fprintf(io.err, "warning: %s\n", err)
		before, err = &rules.PublishedSet{PublishedInfo: damaged.Info}, nil
	}
	if err != nil {
		return err
	}
	if c.Expect != nil && !c.Expect.is(&before.PublishedInfo) {
		return &rules.ConflictError{
			Saw: rules.PublishedInfo{Version: c.Expect.Version, Hash: c.Expect.Hash},
			Now: before.PublishedInfo,
		}
	}
	p := &publication{Previous: before.Version, PreviousHash: before.Hash, path: c.Path}
	p.Added, p.Changed, p.Removed = rules.DiffFiles(before.Files, set.Files)
	switch {
	case before.Version != 0 && before.Hash == set.Hash && !isDamaged:
		p.Result, set = "unchanged", before
	case c.DryRun:
		p.Result = "dry_run"
	default:
		p.Result = "published"
		if err := sets.Publish(ctx, set, before.PublishedInfo, c.Keep); err != nil {
			return err
		}
	}
	p.PublishedInfo = set.PublishedInfo
	if c.Output.json() {
		return printJSON(io, p)
	}
	p.print(io)
	return nil
}

// print tells it to people.
func (p *publication) print(io streams) {
	of := fmt.Sprintf("%s, %s, hash %s, by %s", count(p.Files, "file"), count(p.Bytes, "byte"), reload.ShortHash(p.Hash),
		words.Line(p.Author))
	before := rules.PublishedInfo{Version: p.Previous, Hash: p.PreviousHash}
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
	switch {
	case p.Result == "published" && p.Previous > 0:
		fmt.Fprintf(io.out, "undo it by: weir publish --rollback %s\n", mark(&before))
	case p.Result == "dry_run" && p.path != "":
		fmt.Fprintf(io.out, "publish just this by: weir publish %s --expect %s\n", quoted(p.path), mark(&before))
	}
}

func (c *publishCmd) list(ctx context.Context, io streams, sets *rules.Published) error {
	infos, err := sets.List(ctx)
	if err != nil {
		return err
	}
	if c.Output.json() {
		if infos == nil {
			infos = []rules.PublishedInfo{}
		}
		return printJSON(io, infos)
	}
	for _, i := range infos { // the newest is the one in force
		note := ""
		if i.RollbackTo > 0 {
			note = fmt.Sprintf(", the files of version %d", i.RollbackTo)
		}
		fmt.Fprintf(io.out, "version %s  %s  %s, %s, by %s%s\n", mark(&i), i.PublishedAt.Format(time.RFC3339),
			count(i.Files, "file"), count(i.Bytes, "byte"), words.Line(i.Author), note)
	}
	if len(infos) == 0 {
		fmt.Fprintf(io.out, "nothing is published in %s\n", sets)
	}
	return nil
}

func printJSON(io streams, v any) error {
	enc := json.NewEncoder(io.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// minHash is how many digits of a hash tell two sets apart.
const minHash = 8

// setVersion names a published set, as VERSION or VERSION:HASH. The number alone is given out again where Redis was
// emptied; the hash is of the content.
type setVersion struct {
	Version uint64
	Hash    string // its beginning; empty: any
}

// UnmarshalText implements encoding.TextUnmarshaler, for a flag's value.
func (v *setVersion) UnmarshalText(text []byte) error {
	number, hash, hashed := strings.Cut(string(text), ":")
	n, err := strconv.ParseUint(number, 10, 64)
	isHash := len(hash) >= minHash && strings.Trim(hash, "0123456789abcdef") == ""
	if err != nil || hashed && (!isHash || n == 0) {
		return fmt.Errorf("must be a version, such as 12, or better with %d or more digits of its hash, such as "+
			"12:4f2ab09c11de, got %q", minHash, text)
	}
	v.Version, v.Hash = n, hash
	return nil
}

// String is what UnmarshalText reads.
func (v *setVersion) String() string {
	if v.Hash == "" {
		return strconv.FormatUint(v.Version, 10)
	}
	return fmt.Sprintf("%d:%s", v.Version, v.Hash)
}

// is says whether that is the set.
func (v *setVersion) is(of *rules.PublishedInfo) bool {
	return v.Version == of.Version && strings.HasPrefix(of.Hash, v.Hash)
}

// mark is the set as a setVersion: 0 if there is none.
func mark(of *rules.PublishedInfo) string {
	v := setVersion{Version: of.Version}
	if of.Version > 0 {
		v.Hash = reload.ShortHash(of.Hash)
	}
	return v.String()
}
