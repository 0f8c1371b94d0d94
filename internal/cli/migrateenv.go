package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/weir-ratelimit/weir/internal/cli/ratelimitenv"
)

type migrateEnvCmd struct {
	File string `arg:"" optional:"" help:"File with one NAME=VALUE per line; - for stdin. Default: the environment of this command."`
}

func (*migrateEnvCmd) Help() string {
	return `Prints the command line of weir serve for the variables of envoyproxy/ratelimit, without secrets. Lines
that begin with # say where secrets belong. Under the program name ratelimit, weir reads these variables itself.

Exit codes: 0 printed; 2 Weir does not support a variable, or cannot read the file.

Examples:

    weir migrate-env ratelimit.env
    kubectl set env deploy/ratelimit --list --resolve | weir migrate-env -`
}

func (c *migrateEnvCmd) Run(io streams) error {
	environ := os.Environ()
	if c.File != "" {
		from, err := openInput(c.File, io)
		if err != nil {
			return usage(err)
		}
		defer from.Close() //nolint:errcheck // it was only read
		if environ, err = variablesIn(from); err != nil {
			return usage(err)
		}
	}
	settings, err := ratelimitenv.Read(environ)
	if err == nil {
		err = checkStart(settings)
	}
	if err != nil {
		return &environmentError{err}
	}
	writeSettings(io.out, settings)
	return nil
}

// variablesIn reads one variable per line. It ignores empty lines and comments.
func variablesIn(from io.Reader) (environ []string, err error) {
	lines := bufio.NewScanner(from)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		if !ok {
			return nil, fmt.Errorf("line %d: write NAME=VALUE", n)
		}
		if len(value) > 1 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}
		environ = append(environ, strings.TrimSpace(name)+"="+value)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return nil, errors.New("a line is longer than 64 KiB")
	}
	return environ, lines.Err()
}

// writeSettings writes the settings as a shell command.
func writeSettings(w io.Writer, s *ratelimitenv.Settings) {
	for _, remark := range s.Remarks {
		fmt.Fprintln(w, "# "+remark)
	}
	for _, f := range s.Flags {
		if f.Shown != f.Value {
			fmt.Fprintf(w, "# --%s has a secret (from %s), which no command line should show, so set %s from a Secret instead, "+
				"with the whole value\n", f.Name, strings.Join(f.From, ", "), variableOf(f.Name))
		}
	}
	for _, v := range s.OTel {
		fmt.Fprintln(w, "export "+v.Name+"="+quoted(v.Shown))
	}
	fmt.Fprint(w, "weir serve")
	for _, f := range s.Flags {
		from := ""
		if f.Value != "true" {
			from = "=" + quoted(f.Shown)
		}
		fmt.Fprint(w, " \\\n  --"+f.Name+from)
	}
	fmt.Fprintln(w)
}

// plainWord matches a word that needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:,@%+=~-]*$`)

// quoted quotes a word for a shell if necessary.
func quoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
