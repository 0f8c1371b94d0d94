package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/weir-ratelimit/weir/internal/cli/ratelimitenv"
)

// ratelimitName is the program name under which Weir behaves as envoyproxy/ratelimit: it reads that program's
// environment and ignores arguments.
const ratelimitName = "ratelimit"

// start runs the program named args[0]. If args[1] is the path of ratelimit, start runs ratelimit, because a
// container's command may have been written for an image without an entrypoint.
func start(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 1 && args[1] == "/bin/"+ratelimitName {
		args = args[1:]
	}
	if filepath.Base(args[0]) != ratelimitName {
		return run(ctx, args[1:], stdout, stderr)
	}
	settings, err := ratelimitenv.Read(os.Environ())
	if err != nil {
		return report(stderr, &environmentError{err})
	}
	for _, v := range settings.OTel {
		if err := os.Setenv(v.Name, v.Value); err != nil {
			return report(stderr, &environmentError{err})
		}
	}
	var grammar cli
	own := grammar.Serve.replace(settings, os.Getenv)
	return runCommand(ctx, &grammar, own, stdout, stderr)
}

// replace prepares serve to replace envoyproxy/ratelimit with these settings, and returns its command line, without the
// flags whose own WEIR_ variable is set.
func (c *serveCmd) replace(settings *ratelimitenv.Settings, getenv func(name string) string) (own []string) {
	c.Remarks, c.Origins = settings.Remarks, map[string][]string{}
	own = []string{"serve"}
	for _, f := range settings.Flags {
		c.Origins[f.Name] = f.From
		variable := variableOf(f.Name)
		if getenv(variable) == "" {
			own = append(own, "--"+f.Name+"="+f.Value)
			continue
		}
		c.Remarks = append(c.Remarks, variable+": is set and overrides the --"+f.Name+" of the compatibility mode")
	}
	return own
}

// checkStart returns the error with which a process named ratelimit would refuse to start with these settings. It does
// not check files and addresses of this machine.
func checkStart(settings *ratelimitenv.Settings) error {
	var grammar cli
	serve := &grammar.Serve
	parser, err := newParser(&grammar, streams{out: io.Discard, err: io.Discard}, func(int) {})
	if err != nil {
		return err
	}
	for _, command := range parser.Model.Children {
		for _, f := range command.Flags {
			f.Tag.Envs = nil // ignore the variables of this process
		}
	}
	if _, err = parser.Parse(serve.replace(settings, func(string) string { return "" })); err != nil {
		return withOrigins(err, serve.Origins)
	}
	getenv := func(name string) string { return settings.Env[name] }
	return withOrigins(errors.Join(serve.Options.Check(), serve.Options.OTel.CheckEnvironment(getenv)), serve.Origins)
}

func variableOf(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// environmentError is an error of variables of envoyproxy/ratelimit.
type environmentError struct{ err error }

func (e *environmentError) Error() string {
	return "Weir does not support this environment of envoyproxy/ratelimit:\n" + e.err.Error()
}

func (e *environmentError) Unwrap() error { return e.err }

// flagInError matches a flag.
var flagInError = regexp.MustCompile(`--[a-z0-9-]*[a-z0-9]`)

// withOrigins adds to each flag in an error the variables that the flag comes from.
func withOrigins(err error, origins map[string][]string) error {
	if err == nil || len(origins) == 0 {
		return err
	}
	text := flagInError.ReplaceAllStringFunc(err.Error(), func(flag string) string {
		if from := origins[strings.TrimPrefix(flag, "--")]; len(from) > 0 {
			return fmt.Sprintf("%s (from %s)", flag, strings.Join(from, ", "))
		}
		return flag
	})
	return errors.New(text)
}
