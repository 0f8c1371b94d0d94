package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/examples/starter"
)

// initCmd is `weir init`.
type initCmd struct {
	Dir   string `arg:"" optional:"" name:"dir" default:"." help:"Directory to write to; created if missing."`
	For   string `name:"for" default:"per-client" enum:"per-client,per-api-key,per-path,global" help:"What to limit: per-client (address), per-api-key (header x-api-key), per-path, or global."`
	Force bool   `help:"Overwrite existing files."`

	Output outputFlags `embed:""`
}

// Help is shown below the one line of it.
func (*initCmd) Help() string {
	return `Writes rules/ and envoy.yaml, with comments. They work together unchanged: Envoy listens on port 10000 and
calls serve at its default address. Then move them to where you keep your configuration.

    per-client   60 requests a minute of each address, 20 at once; a block of addresses without limit
    per-api-key  60 a minute and 10,000 a day of each key; one that may do more; by address without a key
    per-path     5 a minute of each address on /login, 600 a minute of all on /search
    global       600 a minute of all clients together

Exit codes: 0 the files were written, 1 they were not (without --force nothing is overwritten), 2 the command line is
wrong.

Examples:

    weir init
    weir init --for per-api-key ratelimit/`
}

// Run writes the files and prints what to do next.
func (c *initCmd) Run(io streams) error {
	from, err := starter.Files(c.For)
	if err != nil {
		return &usageError{err: err, command: "weir init"}
	}
	names, err := fileNames(from)
	if err != nil {
		return err
	}
	if err := c.check(io, names); err != nil {
		return err
	}
	var written []string
	for _, name := range names {
		if err := c.write(from, name); err != nil {
			return err
		}
		written = append(written, c.path(name))
	}
	if c.Output.json() {
		return printJSON(io, map[string][]string{"written": written})
	}
	for _, path := range written {
		fmt.Fprintf(io.out, "wrote %s\n", path)
	}
	c.next(io)
	return nil
}

func fileNames(from fs.FS) (names []string, err error) {
	err = fs.WalkDir(from, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, path)
		}
		return err
	})
	return names, err
}

func (c *initCmd) path(name string) string { return filepath.Join(c.Dir, filepath.FromSlash(name)) }

// check refuses to overwrite, and to put rules beside others that would be read with them. With --force it only tells
// of the latter.
func (c *initCmd) check(io streams, names []string) error {
	var there []string
	for _, name := range names {
		if _, err := os.Lstat(c.path(name)); err == nil {
			there = append(there, c.path(name))
		}
	}
	beside, err := c.otherRules(names)
	if err != nil {
		return err
	}
	switch {
	case c.Force && len(beside) > 0:
		fmt.Fprintf(io.err, "note: serve reads these rules, too: %s\n", strings.Join(beside, ", "))
	case c.Force:
	case len(there) > 0:
		return fmt.Errorf("there already: %s; nothing was written. Name another directory, or add --force to overwrite",
			strings.Join(there, ", "))
	case len(beside) > 0:
		return fmt.Errorf("there are other rules, which serve would read together with these: %s; nothing was written. "+
			"Name another directory, or add --force", strings.Join(beside, ", "))
	}
	return nil
}

// otherRules are the rule files in the directory that are not among the names.
func (c *initCmd) otherRules(names []string) (beside []string, err error) {
	found, err := os.ReadDir(c.path("rules"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, f := range found {
		ext := filepath.Ext(f.Name())
		if (ext == ".yaml" || ext == ".yml") && !slices.Contains(names, "rules/"+f.Name()) {
			beside = append(beside, c.path("rules/"+f.Name()))
		}
	}
	return beside, err
}

func (c *initCmd) write(from fs.FS, name string) error {
	data, err := fs.ReadFile(from, name)
	if err != nil {
		return err
	}
	path := c.path(name)
	return errors.Join(
		os.MkdirAll(filepath.Dir(path), 0o755), //nolint:gosec // configuration that a service of another user reads
		os.WriteFile(path, data, 0o644),        //nolint:gosec // as above
	)
}

// next says which commands come next, as they can be copied.
func (c *initCmd) next(io streams) {
	rules := quoted(c.path("rules"))
	fmt.Fprintf(io.out, `
Next:
    weir check %s
    weir explain --rules %s --domain demo %s
    weir serve --rules %s
    envoy -c %s
    for i in $(seq 30); do curl -s -o /dev/null -w '%%{http_code} ' %s; done
`, rules, rules, starter.Ask[c.For], rules, quoted(c.path("envoy.yaml")), starter.Try[c.For])
}

// quoted is a path for a shell.
func quoted(path string) string {
	if strings.ContainsFunc(path, func(r rune) bool {
		return !strings.ContainsRune("/._-~+:@%", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}
