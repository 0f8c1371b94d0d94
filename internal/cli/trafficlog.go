package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/weir-ratelimit/weir/internal/offline"
	"github.com/weir-ratelimit/weir/internal/rules"
)

// logFlags describe an access log.
type logFlags struct {
	Map       []string `sep:"none" placeholder:"KEY=FIELD,..." help:"A descriptor that Envoy makes of a request: the key of each entry and the field of the access log that has its value, or \"text\". Repeat it for several descriptors."`
	Domain    string   `placeholder:"DOMAIN" help:"The domain of Envoy's filter, for --map."`
	TimeField string   `default:"start_time" help:"Field of the access log with the time: RFC 3339, or a number since 1970."`
}

// given reports whether a flag is set that only a log needs.
func (f *logFlags) given() bool { return len(f.Map) > 0 || f.Domain != "" }

// options checks the flags.
func (f *logFlags) options() (o offline.LogOptions, err error) {
	o = offline.LogOptions{Domain: f.Domain, TimeField: f.TimeField}
	var p problems
	for _, text := range f.Map {
		m, err := offline.ParseMappings(text)
		p.check(err == nil, "--map: %w", err)
		o.Mappings = append(o.Mappings, m)
	}
	p.check(len(f.Map) > 0 && f.Domain != "", "--traffic: an access log needs --domain, and --map for each descriptor "+
		"that Envoy makes, such as --map remote_address=downstream_remote_address")
	return o, errors.Join(p...)
}

// openInput opens the file at a path, - for stdin.
func openInput(path string, from streams) (io.ReadCloser, error) {
	if path == rules.Stdin {
		return io.NopCloser(from.in), nil
	}
	return os.Open(path) //nolint:gosec // the user names it
}

// printLogNotes prints, on stderr, what limits the answer.
func printLogNotes(w io.Writer, lines *offline.Log, notes []string) {
	for _, bad := range lines.Bad {
		fmt.Fprintf(w, "line %d: %s\n", bad.Line, bad.Error)
	}
	if lines.BadLines > 0 {
		fmt.Fprintf(w, "%d of %d lines left out\n", lines.BadLines, lines.Lines)
	}
	if lines.LateLines > 0 {
		fmt.Fprintf(w, "%d of %d lines were out of order by more than 10,000 lines, and replayed late\n",
			lines.LateLines, lines.Lines)
	}
	for _, note := range notes {
		fmt.Fprintf(w, "note: %s\n", note)
	}
}
