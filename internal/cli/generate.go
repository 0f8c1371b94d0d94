package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/istio"
	"github.com/weir-ratelimit/weir/internal/rules"
)

type generateCmd struct {
	Istio generateIstioCmd `cmd:"" help:"Write EnvoyFilters and rules for Istio."`
}

func (*generateCmd) Help() string {
	return "Example:\n\n    weir generate istio limits.yaml | kubectl apply --server-side -f -"
}

type generateIstioCmd struct {
	Files    []string          `arg:"" name:"file" help:"Limits and objects of Kubernetes, in YAML; - for stdin."`
	Output   string            `placeholder:"DIR" help:"Write a file per object to DIR, created if missing. Default: stdout."`
	Selector map[string]string `placeholder:"LABEL=VALUE;..." help:"Labels of the pods of gateways that are not in the files. Default: istio=NAME."`
	Revision string            `placeholder:"REV" help:"Only the control plane of this revision reads the EnvoyFilters (label istio.io/rev)."`

	OneCounterPerRule bool `help:"Matches of a rule with the same name have one counter; else they are refused."`
}

func (*generateIstioCmd) Help() string {
	return `Writes an EnvoyFilter per gateway or service, which makes its Envoys call Weir, and the ConfigMap weir-istio-rules
with Weir's rules. The same input gives the same output; counters survive. A short form of limits:

    gateway: istio-system/ingressgateway
    limits:
      - {name: login, paths: [/login], methods: [POST], per: client-address, allow: 5 per minute}

docs/start/istio.md explains it. Give all files together each time: the ConfigMap holds the rules of all limits.
Remarks go to stderr: what was not read, and who must be allowed to call Weir.

Exit codes: 0 written, 1 refused or not written, 2 a file cannot be read.

Examples:

    weir generate istio limits.yaml | kubectl apply --server-side -f -
    kubectl get gateways,httproutes,backendtrafficpolicies -A -o yaml | weir generate istio - --output istio/`
}

var labelValue = regexp.MustCompile(`^[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?$`)

// Run writes the files, and remarks to stderr.
func (c *generateIstioCmd) Run(from streams) error {
	for _, value := range c.Selector {
		if !labelValue.MatchString(value) {
			return usage(fmt.Errorf("%q is no value of a label; write --selector=LABEL=VALUE;LABEL=VALUE", value))
		}
	}
	var files []istio.File
	for _, path := range c.Files {
		file, err := openInput(path, from)
		if err != nil {
			return usage(err)
		}
		data, err := io.ReadAll(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return usage(err)
		}
		if path == rules.Stdin {
			path = "stdin"
		}
		files = append(files, istio.File{Name: path, Data: data})
	}
	out, err := istio.Generate(files, istio.Options{
		Selector: c.Selector, Revision: c.Revision, OneCounterPerRule: c.OneCounterPerRule, Version: build().Version,
	})
	if errs := (descriptors.Errors{}); errors.As(err, &errs) {
		fmt.Fprintf(from.err, "%s\n%s; nothing was written\n", errs, count(errs.Count(), "error"))
		return errReported
	}
	for _, line := range out.Report {
		fmt.Fprintln(from.err, line)
	}
	if c.Output != "" {
		return c.write(from, out.Files)
	}
	for _, f := range out.Files {
		fmt.Fprintf(from.out, "---\n%s", f.Data)
	}
	return nil
}

// write writes the files to the directory, and names files of earlier runs that are not among them.
func (c *generateIstioCmd) write(to streams, files []istio.File) error {
	if err := os.MkdirAll(c.Output, 0o755); err != nil { //nolint:gosec // other users may apply the files
		return err
	}
	old, err := fs.Glob(os.DirFS(c.Output), "envoyfilter-*.yaml")
	for _, f := range files {
		path := filepath.Join(c.Output, f.Name)
		err = errors.Join(err, os.WriteFile(path, f.Data, 0o644)) //nolint:gosec // as above
		fmt.Fprintf(to.out, "wrote %s\n", path)
		old = slices.DeleteFunc(old, func(name string) bool { return name == f.Name })
	}
	for _, name := range old {
		fmt.Fprintf(to.err, "%s is of an earlier run: delete its EnvoyFilter (kubectl delete -f), and the file\n",
			filepath.Join(c.Output, name))
	}
	return err
}
