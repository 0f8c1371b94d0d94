package admin

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/pprof" // it also registers handlers in http.DefaultServeMux, which is not served
	"net/url"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/words"
)

// debugIndex lists the pages, in the form of envoyproxy/ratelimit's debug port.
const debugIndex = `/rlconfig: print out the currently loaded configuration for debugging
/stats: print out stats
`

// NewDebugServer returns an HTTP server for the debug pages of envoyproxy/ratelimit, which are read-only. Profiles are
// not among them: Options.Pprof serves them to authorized clients. The server does not listen yet. rules returns the
// active rules or nil. stats writes a line per counter and gauge.
func NewDebugServer(rules func() *descriptors.Set, stats func(w io.Writer) error) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, debugIndex) })
	mux.HandleFunc("GET /rlconfig", inTurn(func(w http.ResponseWriter, _ *http.Request) {
		header(w, http.StatusOK, "text/plain; charset=utf-8")
		_ = writeLimits(w, rules()) // on error the client has disconnected
	}))
	mux.HandleFunc("GET /stats", inTurn(func(w http.ResponseWriter, _ *http.Request) {
		header(w, http.StatusOK, "text/plain; charset=utf-8")
		_ = stats(w) // as above
	}))
	return newServer(http.MaxBytesHandler(mux, maxBody))
}

// NewMetricsServer returns an HTTP server that serves only metrics at path. The server does not listen yet.
func NewMetricsServer(path string, metrics http.Handler) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path, scraped(metrics))
	return newServer(http.MaxBytesHandler(mux, maxBody))
}

// scrapeTime is the time for which a client may read a response of GET /metrics. It is Prometheus' default timeout.
const scrapeTime = 10 * time.Second

// scrape is a response of GET /metrics.
type scrape struct {
	header http.Header
	status int
	bytes.Buffer
}

func (s *scrape) Header() http.Header    { return s.header }
func (s *scrape) WriteHeader(status int) { s.status = status }

// scraped serves concurrent scrapes with one response, which it stores compressed, because the text may have 30 MB.
func scraped(metrics http.Handler) http.HandlerFunc {
	newest := newShared[*scrape]()
	asked := &http.Request{Method: http.MethodGet, URL: &url.URL{}, Header: http.Header{"Accept-Encoding": {"gzip"}}}
	return func(w http.ResponseWriter, r *http.Request) {
		made := newest.get(0, func() *scrape {
			made := &scrape{header: http.Header{}, status: http.StatusOK}
			metrics.ServeHTTP(made, asked)
			return made
		})
		maps.Copy(w.Header(), made.header)
		body := io.Reader(bytes.NewReader(made.Bytes()))
		if made.header.Get("Content-Encoding") == "gzip" && !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			w.Header().Del("Content-Encoding")
			plain, err := gzip.NewReader(body)
			if err != nil {
				writeError(w, err)
				return
			}
			body = plain
		}
		// On error, the server's own deadline applies.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(scrapeTime))
		w.WriteHeader(made.status)
		_, _ = io.Copy(w, body) // on error the client has disconnected
	}
}

// newServer returns a server without an ErrorLog, which the caller may set.
func newServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      60 * time.Second, // a large rule set over a slow connection
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
	}
}

// writeLimits writes a line per limit, in the form of envoyproxy/ratelimit's configuration.
func writeLimits(w io.Writer, set *descriptors.Set) error {
	if set == nil {
		return nil
	}
	b := bufio.NewWriter(w)
	out := words.Plain{Writer: b}
	for _, d := range set.Domains() {
		for _, r := range d.Rules() {
			name := d.Name() + "." + statName(r.Path)
			mode := fmt.Sprintf("shadow_mode: %t, quota_mode: %t", r.ShadowMode, r.QuotaMode)
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
	return b.Flush()
}

// statName returns envoyproxy/ratelimit's name of a rule: key_value.key_value.
func statName(path string) string {
	var levels []string
	for _, level := range descriptors.SplitPath(path) {
		name := level[0]
		if value, ok := strings.CutPrefix(level[1], "="); ok && value != "" {
			name += "_" + value
		}
		levels = append(levels, name)
	}
	return strings.Join(levels, ".")
}

// debug is the path of the profiles.
const debug = "/debug/pprof/"

// profiles returns the routes of profiles. Because these show internals and cost CPU time, they require a flag. The
// command line is not served, because it may contain a store's password.
func profiles() []Route {
	return []Route{
		{"GET", debug, false, "", pprof.Index}, // also serves heap, goroutine, block, ...
		{"GET", debug + "profile", false, "", pprof.Profile},
		{"GET", debug + "symbol", false, "", pprof.Symbol},
		{"GET", debug + "trace", false, "", pprof.Trace},
	}
}
