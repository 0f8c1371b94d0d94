package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/deploy"
	"github.com/weir-ratelimit/weir/examples/starter"
)

type initCmd struct {
	Dir   string `arg:"" optional:"" name:"dir" default:"." help:"Directory to write to; created if missing."`
	For   string `name:"for" default:"per-client" enum:"per-client,per-api-key,per-path,global,quota,envoy-module,kubernetes,istio" help:"What to write: per-client, per-api-key, per-path, global, quota, envoy-module, kubernetes or istio."`
	Force bool   `help:"Overwrite existing files."`
}

func (*initCmd) Help() string {
	return `Writes rules/, their tests (weir test) and envoy.yaml, which work together unchanged, and prints the commands to try
them. Envoy listens on port 10000 and calls serve at its default address.

    per-client   60 requests a minute per address, 20 at once; an address block without limit
    per-api-key  60 a minute and 10,000 a day per key; one key with more; per address without a key
    per-path     5 a minute per address on /login, 600 a minute in all on /search
    global       600 a minute of all clients together
    quota        20 a second on /search, 1,000 a second elsewhere, over all Envoys: Weir assigns parts of these limits
                 to each Envoy, which decides without calls to Weir (RLQS, serve --quota; experimental)
    envoy-module per-client, with Weir inside Envoy 1.40, without a service (experimental)
    kubernetes   manifests: Weir as a Service, with memory or Redis, and an Envoy
    istio        manifests: Weir in the mesh, and limits for gateway and sidecars

Exit codes: 0 written, 1 not written (--force overwrites files), 2 the command line is wrong.

Examples:

    weir init
    weir init --for per-api-key ratelimit/`
}

// Run writes the files and prints the next steps.
func (c *initCmd) Run(io streams) error {
	files, next, err := c.kit()
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(files))
	var there []string
	for _, name := range names {
		if _, err := os.Lstat(c.path(name)); err == nil {
			there = append(there, c.path(name))
		}
	}
	if len(there) > 0 && !c.Force {
		return fmt.Errorf("nothing was written, because these files exist: %s. Name another directory, or add --force to "+
			"overwrite them", strings.Join(there, ", "))
	}
	for _, name := range names {
		path := c.path(name)
		if err := errors.Join(
			os.MkdirAll(filepath.Dir(path), 0o755), //nolint:gosec // a service of another user reads these files
			os.WriteFile(path, files[name], 0o644), //nolint:gosec // as above
		); err != nil {
			return err
		}
		fmt.Fprintf(io.out, "wrote %s\n", path)
	}
	fmt.Fprintf(io.out, "\nNext, in the directory %s:\n\n%s", quoted(c.Dir), next)
	return nil
}

// kit returns the YAML files for c.For by their paths, and the next steps from its README.
func (c *initCmd) kit() (files map[string][]byte, next string, err error) {
	from := starter.Files
	if c.For == deploy.Kubernetes || c.For == deploy.Istio {
		from = deploy.Files
	}
	dir, err := from(c.For)
	if err != nil {
		return nil, "", err
	}
	readme, err := fs.ReadFile(dir, "README.md")
	if err != nil {
		return nil, "", err
	}
	_, next, _ = strings.Cut(string(readme), "\n\n") // without the heading
	files = map[string][]byte{}
	err = fs.WalkDir(dir, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".yaml" && !d.IsDir() {
			files[path], err = fs.ReadFile(dir, path)
		}
		return err
	})
	return files, next, err
}

func (c *initCmd) path(name string) string { return filepath.Join(c.Dir, filepath.FromSlash(name)) }
