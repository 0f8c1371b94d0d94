package admin

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// DebugOptions are what the debug pages show.
type DebugOptions struct {
	// Rules returns the rules in force, nil if there are none.
	Rules func() *descriptors.Set
	// Stats writes a line for each counter and gauge.
	Stats func(w io.Writer) error
	// Log receives what goes wrong with a connection.
	Log *slog.Logger
}

// debugIndex lists the pages, as envoyproxy/ratelimit does at its debug port.
const debugIndex = `/debug/pprof/: root of various pprof endpoints. hit for help.
/debug/pprof/profile: CPU profiling endpoint
/debug/pprof/trace: trace endpoint
/rlconfig: print out the currently loaded configuration for debugging
/stats: print out stats
`

// NewDebugServer is an HTTP server of the debug pages of envoyproxy/ratelimit. They change nothing. It does not listen.
func NewDebugServer(o DebugOptions) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, debugIndex) })
	mux.HandleFunc("GET /rlconfig", oneAtATime(func(w http.ResponseWriter, _ *http.Request) {
		header(w, http.StatusOK, "text/plain; charset=utf-8")
		_ = writeLimits(w, o.Rules()) // the client has gone: nobody is left to tell
	}))
	mux.HandleFunc("GET /stats", oneAtATime(func(w http.ResponseWriter, _ *http.Request) {
		header(w, http.StatusOK, "text/plain; charset=utf-8")
		_ = o.Stats(w) // as above
	}))
	for _, r := range profiles() {
		mux.HandleFunc(r.Method+" "+r.Path, r.handler)
	}
	return newServer(http.MaxBytesHandler(mux, maxBody), o.Log)
}

// NewMetricsServer is an HTTP server of metrics at a path, and of nothing else. It does not listen.
func NewMetricsServer(path string, metrics http.Handler, log *slog.Logger) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET "+path, metrics)
	return newServer(http.MaxBytesHandler(mux, maxBody), log)
}

func newServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      60 * time.Second, // a large rule set over a slow line
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// writeLimits writes a line for each limit, as envoyproxy/ratelimit shows its configuration.
func writeLimits(w io.Writer, set *descriptors.Set) error {
	if set == nil {
		return nil
	}
	out := bufio.NewWriter(w)
	for _, d := range set.Domains() {
		for _, r := range d.Rules() {
			name := d.Name() + "." + statName(r.Path)
			mode := fmt.Sprintf("shadow_mode: %t, quota_mode: %t", r.Mode == limiter.Shadow, r.Mode == limiter.Quota)
			if r.Unlimited {
				fmt.Fprintf(out, "%s: unit=UNKNOWN requests_per_unit=0, %s\n", name, mode)
			}
			for _, l := range r.Limits {
				more := ""
				if l.UnitMultiplier > 1 {
					more = fmt.Sprintf(", unit_multiplier: %d", l.UnitMultiplier)
				}
				fmt.Fprintf(out, "%s: unit=%s requests_per_unit=%d, %s%s\n",
					name, strings.ToUpper(l.Unit.String()), l.Policy.Limit(), mode, more)
			}
		}
	}
	return out.Flush()
}

// statName is a rule as envoyproxy/ratelimit names it: key_value.key_value.
func statName(path string) string {
	levels := strings.Split(path, " > ")
	for i, level := range levels {
		key, value := cutKey(level)
		if levels[i] = key; value != "" {
			levels[i] += "_" + strings.ReplaceAll(value, ` \>`, ` >`)
		}
	}
	return strings.Join(levels, ".")
}

// cutKey splits a level of a rule's path at the first = without a backslash.
func cutKey(level string) (key, value string) {
	var b strings.Builder
	for i := 0; i < len(level); i++ {
		switch level[i] {
		case '\\':
			if i++; i < len(level) {
				b.WriteByte(level[i])
			}
		case '=':
			return b.String(), level[i+1:]
		default:
			b.WriteByte(level[i])
		}
	}
	return b.String(), ""
}
