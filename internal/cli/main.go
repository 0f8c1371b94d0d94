// Package cli is the command line of Weir, with one file per subcommand. It handles flags, output and exit codes; other
// packages do the work.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // time zones for containers without tzdata; the system's have precedence

	"github.com/alecthomas/kong"

	"github.com/weir-ratelimit/weir/internal/words"
)

// Exit codes of all commands; see docs/reference/exit-codes.md.
const (
	exitOK     = 0
	exitFailed = 1 // the command failed; for diff, test and explain --expect, a negative result
	exitUsage  = 2 // a wrong command line or an unreadable path; for diff, test and explain, also no result
)

// cli is the command line.
type cli struct {
	Serve      serveCmd      `cmd:"" help:"Serve Envoy's rate limit requests."`
	Init       initCmd       `cmd:"" help:"Write rules and an Envoy configuration to start from."`
	Check      checkCmd      `cmd:"" help:"Validate rule files, offline."`
	Schema     schemaCmd     `cmd:"" help:"Print the JSON Schema of rule files, for editors."`
	Explain    explainCmd    `cmd:"" help:"Show which rules a request matches, and why."`
	Diff       diffCmd       `cmd:"" help:"Compare two rule sets, also under recorded traffic."`
	Test       testCmd       `cmd:"" help:"Run tests of rules, offline."`
	Simulate   simulateCmd   `cmd:"" help:"Run virtual traffic through limits, offline."`
	Generate   generateCmd   `cmd:"" help:"Write configurations of meshes from limits and policies."`
	Publish    publishCmd    `cmd:"" help:"Store rules in Redis, for all replicas at once."`
	Top        topCmd        `cmd:"" help:"Show the busiest or most denied keys of a running process."`
	Get        getCmd        `cmd:"" help:"Show the counters of a descriptor in a running process."`
	Reset      resetCmd      `cmd:"" help:"Delete counters through a running process."`
	Status     statusCmd     `cmd:"" help:"Show the state of a running process and its rules."`
	Health     healthCmd     `cmd:"" help:"Check whether a running process is ready, for health checks of containers."`
	Reload     reloadCmd     `cmd:"" help:"Reload the rule files of a running process now."`
	MigrateEnv migrateEnvCmd `cmd:"" help:"Convert an environment of envoyproxy/ratelimit to flags."`

	ShowVersion kong.VersionFlag `name:"version" help:"Show version and build."`

	topic string // group of serve's flags that weir help TOPIC shows; empty for commonFlags
}

// streams are the standard streams of a command.
type streams struct {
	out, err io.Writer
	in       io.Reader // read for the argument -
}

// Main runs the program and returns its exit code. Version and commit come from the linker's flags; if empty, Main uses
// the values that Go has recorded in the binary.
func Main(linkedVersion, linkedCommit string) int {
	version, commit = linkedVersion, linkedCommit
	return start(context.Background(), os.Args, os.Stdout, os.Stderr)
}

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runCommand(ctx, &cli{}, args, stdout, stderr)
}

// runCommand is run with a grammar whose fields may be set in advance.
func runCommand(ctx context.Context, grammar *cli, args []string, stdout, stderr io.Writer) int {
	out := &checkedWriter{Writer: words.Plain{Writer: inColors(stdout)}}
	io := streams{out: out, err: words.Plain{Writer: inColors(stderr)}, in: os.Stdin}
	helped := false
	parser, err := newParser(grammar, io, func(int) { helped = true })
	if err != nil {
		return report(io.err, err)
	}
	if len(args) == 0 || args[0] == "help" { // weir help COMMAND or weir help TOPIC
		args = append(slices.Clone(args[min(len(args), 1):]), "--help")
		isTopic := func(g kong.Group) bool { return g.Key == args[0] && g.Key != "server" }
		if slices.ContainsFunc(flagGroups, isTopic) {
			grammar.topic, args[0] = args[0], "serve"
		}
	}
	command, err := parser.Parse(args)
	switch {
	case helped: // kong continues parsing after it has printed the help
		return exitOK
	case err != nil:
		return report(io.err, &usageError{err: withOrigins(err, grammar.Serve.Origins), command: commandOf(err)})
	}
	command.BindTo(ctx, (*context.Context)(nil))
	if err = checkVariables(command); err == nil {
		err = command.Run(io)
		err = cmp.Or(err, out.err)
	}
	if usage := (*usageError)(nil); errors.As(err, &usage) && usage.command == "" {
		usage.command = command.Selected().FullPath()
	}
	return report(io.err, err)
}

// checkedWriter keeps the first error, so that commands need not check each write.
type checkedWriter struct {
	io.Writer

	err error
}

// Write implements io.Writer.
func (w *checkedWriter) Write(text []byte) (int, error) {
	n, err := w.Writer.Write(text)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// newParser returns a parser for the grammar, with the options of its help.
func newParser(grammar *cli, io streams, exit func(int)) (*kong.Kong, error) {
	b := build()
	return kong.New(grammar,
		kong.Name("weir"),
		kong.Description("Weir is a rate limit service for Envoy: rules from YAML files that may change at any time, "+
			"counters in memory or in Redis.\n\nExit codes: 0 success, 1 failure, 2 a wrong command line or a path that "+
			"cannot be read; the help of each command has details."),
		kong.Vars{"version": "weir " + buildLine(&b)},
		kong.Writers(io.out, io.err),
		kong.Exit(exit),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
		kong.Help(grammar.printHelp),
		kong.ExplicitGroups(flagGroups),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(readDuration)),
	)
}

// commonFlags are the 15 flags of serve that most users set. weir help TOPIC shows the other flags.
var commonFlags = []string{
	"rules", "xds-server", "store", "on-store-failure", "fallback-replicas", "grpc-addr", "http-addr", "grpc-tls-cert",
	"grpc-tls-key", "http-token-file", "ratelimit-headers", "statsd-addr", "otel-traces", "log-level", "log-format",
}

// printHelp prints the help of the selected command.
func (c *cli) printHelp(o kong.HelpOptions, ctx *kong.Context) error {
	if serve := ctx.Selected(); serve != nil && serve.Name == "serve" {
		for _, f := range slices.Concat(serve.Flags, ctx.Model.Flags) { // the latter are --help and --version
			f.Hidden = !slices.Contains(commonFlags, f.Name)
			if c.topic != "" {
				f.Hidden = f.Group == nil || f.Group.Key != c.topic
			}
		}
	}
	return kong.DefaultHelpPrinter(o, ctx)
}

// readDuration parses the value of a flag or argument.
func readDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := words.ParseDuration(text)
	if err == nil {
		target.SetInt(int64(d))
	}
	return err
}

// usageError is an error of the command line.
type usageError struct {
	err     error
	command string // such as "weir serve"; runCommand sets it if it is empty
}

func usage(err error) error { return &usageError{err: err} }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// problems collects the errors of a command line.
type problems []error

func (p *problems) check(ok bool, format string, args ...any) {
	if !ok {
		*p = append(*p, fmt.Errorf(format, args...))
	}
}

// commandOf returns the command whose arguments kong could not parse.
func commandOf(err error) string {
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context != nil && parse.Context.Selected() != nil {
		return parse.Context.Selected().FullPath()
	}
	return "weir"
}

// report prints err and returns its exit code.
func report(w io.Writer, err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitFailed
	case errors.Is(err, errNoAnswer):
		return exitUsage
	case errors.As(err, new(*environmentError)):
		fmt.Fprintf(w, "weir: %s\n", withoutPasswords(err.Error()))
		return exitUsage
	case errors.As(err, &usage):
		msg := strings.ReplaceAll(withoutPasswords(err.Error()), "\n", "\nweir: ")
		fmt.Fprintf(w, "weir: %s\nRun \"%s --help\" for its arguments and flags.\n", msg, usage.command)
		return exitUsage
	default:
		fmt.Fprintf(w, "weir: %s\n", withoutPasswords(err.Error()))
		return exitFailed
	}
}

// errReported is an error whose message has already been printed.
var errReported = errors.New("reported")

// userinfo matches a possible user and password, also in a malformed URL. rates matches rates of simulate, such as
// step:10/s,100/s@10s, which look similar. fromVariable and noPair match kong's quotes of environment variables and of
// maps, because a whole quote may be a password.
var (
	userinfo     = regexp.MustCompile(`[^\s"']*[:/][^\s"]*@`)
	rates        = regexp.MustCompile(`^(step:)?([0-9.]+/[smh](@[0-9a-z.]+,|,|@$))+$`)
	password     = regexp.MustCompile(`(://[^:@/\s[]*:)\S*@`)
	fromVariable = regexp.MustCompile(`\(from envar (\w+)=.*\)`)
	noPair       = regexp.MustCompile(`expected "<key>=<value>" but got ".*?"`)
)

// withoutPasswords hides passwords of URLs in a message, such as of a malformed URL that kong quotes.
func withoutPasswords(msg string) string {
	msg = noPair.ReplaceAllString(fromVariable.ReplaceAllString(msg, "(from $1)"), "expected NAME=VALUE")
	const form = "[user:password@]" // occurs in error messages that show the form of a URL
	parts := strings.Split(msg, form)
	for i := range parts {
		parts[i] = userinfo.ReplaceAllStringFunc(parts[i], func(text string) string {
			switch {
			case rates.MatchString(text), text == "unix:@": // an abstract socket
				return text
			case strings.Contains(text, "://"):
				return password.ReplaceAllString(text, "${1}xxxxx@")
			default:
				return "xxxxx@"
			}
		})
	}
	return strings.Join(parts, form)
}

// outputFlags select the output format of a command.
type outputFlags struct {
	Format string `default:"text" enum:"text,json" help:"text for people, or json."`
}

// print prints v as JSON or calls text, which need not check its writes to io.out.
func (o *outputFlags) print(io streams, v any, text func()) error {
	if o.Format == "json" {
		return printJSON(io, v)
	}
	text()
	return nil
}

func printJSON(io streams, v any) error {
	enc := json.NewEncoder(io.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
