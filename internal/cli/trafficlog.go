package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/weir-ratelimit/weir/internal/decisionlog"
	"github.com/weir-ratelimit/weir/internal/offline"
	"github.com/weir-ratelimit/weir/internal/rules"
)

// logFlags say what a log of requests is.
type logFlags struct {
	Map       []string `sep:"none" placeholder:"KEY=FIELD,..." help:"A descriptor that Envoy makes of a request: the key of each entry and the field of the access log that has its value, or \"text\". Repeat it for several descriptors."`
	Domain    string   `placeholder:"DOMAIN" help:"The domain of Envoy's filter, for --map."`
	TimeField string   `default:"start_time" help:"Field of the access log with the time: RFC 3339, or a number since 1970."`
	KeyFile   string   `placeholder:"FILE" help:"The file of serve's --decision-log-key-file, so that values that rules name are known in a log of hashes."`
}

// given reports whether a flag says that there is a log.
func (f *logFlags) given() bool { return len(f.Map) > 0 || f.Domain != "" || f.KeyFile != "" }

// options checks what the flags say.
func (f *logFlags) options() (o offline.LogOptions, err error) {
	o = offline.LogOptions{Domain: f.Domain, TimeField: f.TimeField}
	var p problems
	for _, text := range f.Map {
		m, err := offline.ParseMappings(text)
		p.check(err == nil, "--map: %w", err)
		o.Mappings = append(o.Mappings, m)
	}
	p.check((len(f.Map) > 0) == (f.Domain != ""),
		"--map goes together with --domain: Envoy's access log does not say which rules are asked")
	p.check(len(f.Map) == 0 || f.KeyFile == "",
		"--key-file is for a log of serve --decision-log, --map for an access log; remove one of the two")
	if f.KeyFile != "" {
		o.Key, err = decisionlog.ReadKey(f.KeyFile)
		p.check(err == nil, "--key-file: %w", err)
	}
	return o, errors.Join(p...)
}

// openInput opens the file at a path, - for stdin.
func openInput(path string, from streams) (io.ReadCloser, error) {
	if path == rules.Stdin {
		return io.NopCloser(from.in), nil
	}
	return os.Open(path) //nolint:gosec // the user names it
}

// printLogNotes says on stderr what to know of a log.
func printLogNotes(w io.Writer, lines *offline.LineCounts, notes []string) {
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
