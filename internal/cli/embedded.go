package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/app"
)

// withoutServer are the flags of weir serve that have no effect without a gRPC server or inside another process;
// withoutServerAll has prefixes of such flags.
var (
	withoutServer    = []string{"drain-delay", "stop-timeout", "quota"}
	withoutServerAll = []string{"grpc-"}
)

// ParseEmbedded parses flags of weir serve, and its environment variables, for a Weir inside another process. By
// default there is no HTTP address. Its error names the invalid flag, and contains no passwords.
func ParseEmbedded(flags []string) (*app.Options, error) {
	o, err := parseEmbedded(flags)
	if err != nil {
		return nil, errors.New(withoutPasswords(err.Error()))
	}
	o.Embedded, o.Build = true, build()
	return o, nil
}

func parseEmbedded(flags []string) (*app.Options, error) {
	args := []string{"serve"}
	if os.Getenv("WEIR_HTTP_ADDR") == "" {
		args = append(args, "--http-addr=")
	}
	for _, flag := range flags {
		if !strings.HasPrefix(flag, "--") || flag == "--" {
			return nil, fmt.Errorf("%q is not a flag of weir serve; write a flag and its value as one text, such as "+
				"--rules=/etc/weir/rules", flag)
		}
	}
	var grammar cli
	var out bytes.Buffer
	helped := false
	parser, err := newParser(&grammar, streams{out: &out, err: &out}, func(int) { helped = true })
	if err != nil {
		return nil, err
	}
	command, err := parser.Parse(append(args, flags...))
	switch {
	case helped:
		return nil, errors.New("--help and --version have no effect here; run weir serve --help")
	case err != nil:
		return nil, err
	}
	for _, p := range command.Path {
		if p.Flag == nil {
			continue
		}
		begins := func(with string) bool { return strings.HasPrefix(p.Flag.Name, with) }
		if slices.Contains(withoutServer, p.Flag.Name) || slices.ContainsFunc(withoutServerAll, begins) {
			return nil, fmt.Errorf("--%s needs weir as a separate process; remove it", p.Flag.Name)
		}
	}
	if err := checkVariables(command); err != nil {
		return nil, err
	}
	o := &grammar.Serve.Options
	if o.RunsCommand() {
		return nil, errors.New("password_command: Weir inside Envoy runs no programs; write password_file, and let another " +
			"process renew the file")
	}
	return o, o.Check()
}
