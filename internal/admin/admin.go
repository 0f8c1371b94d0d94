// Package admin is the process over HTTP, for people, probes and Prometheus: is it alive, is it ready, which
// rules are live, load them again now.
package admin

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof" // its handlers are only there on request: see profiles
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/topkeys"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Bounds of the server.
const (
	readyTimeout = 500 * time.Millisecond // all checks of one /readyz together: half of a Kubernetes probe's patience
	maxBody      = 16 << 10               // bytes: of a reset or a boost
	maxHeader    = 16 << 10               // bytes
)

// Check is one thing that must hold for the process to be ready.
type Check struct {
	// Name is the word before the colon in the answer of /readyz.
	Name string
	// Err is why it does not hold, nil if it does. It must return soon after ctx is done, and its text must
	// carry no secret.
	Err func(ctx context.Context) error
	// Note, if not nil, is what somebody should know although the check holds; empty if nothing.
	Note func() string
}

// RulesStatus is what is known about the rule files.
type RulesStatus struct {
	// Hash is of the content of the files that the live rules were compiled from; empty if no rules are live.
	Hash string `json:"hash"`
	// LoadedAt is when the live rules went live.
	LoadedAt time.Time `json:"loaded_at,omitzero"`
	// Files are the names of the files that the live rules come from.
	Files []string `json:"files"`
	// Errors are what was wrong with the files at the last load, one error each; empty if it was good.
	Errors []string `json:"errors,omitempty"`
	// ErrorsAt is when they were found.
	ErrorsAt time.Time `json:"errors_at,omitzero"`
	// Published is nil where no rules come from Redis.
	Published *PublishedStatus `json:"published,omitempty"`
}

// PublishedStatus is what is known about the rules in Redis.
type PublishedStatus struct {
	// Version is of the set that is live, 0 if none is; the next three say more of it.
	Version     uint64    `json:"version"`
	Hash        string    `json:"hash"`
	Author      string    `json:"author"`
	PublishedAt time.Time `json:"published_at,omitzero"`
	// Newest is the version that was read last. Another than Version was refused: see RulesStatus.Errors.
	Newest uint64 `json:"newest_version"`
	// Error is why Redis could not be asked at the last look.
	Error string `json:"error,omitempty"`
}

// Rules are the rule files and what became of them.
type Rules interface {
	// Status is the state of the last load.
	Status() RulesStatus
	// Live is the compiled set that requests are decided by, nil if there is none.
	Live() json.Marshaler
	// Reload reads the files now. Its error is in the Status after it, too.
	Reload(ctx context.Context) error
}

// Options are what the handler shows.
type Options struct {
	// Checks are asked by /readyz, in this order.
	Checks []Check
	Rules  Rules
	// Explainer answers GET /explain.
	Explainer Explainer
	// Counters answers /keys/get and /keys/reset, and Boosts /boosts.
	Counters Counters
	Boosts   Boosts
	// Metrics answers GET /metrics.
	Metrics http.Handler
	// Build answers GET /version, as JSON.
	Build any
	// Set is the live rules, nil if there are none. Decisions is how often a limit had each outcome, by rls.Outcome; nil if
	// that is not counted for it alone.
	Set       func() *descriptors.Set
	Decisions func(*descriptors.Limit) []uint64
	// Top answers GET /top. Nil: keys are not counted.
	Top func(topkeys.Query) (topkeys.Keys, error)
	// Store is what counters are kept in, StartedAt when the process started.
	Store     string
	StartedAt time.Time
	// Pprof adds net/http/pprof's profiles under /debug/pprof/.
	Pprof bool
	// Token is read for each request that changes something or asks for a profile: such a request needs it as
	// "Authorization: Bearer ...", or a verified client certificate where ClientCerts is set. With neither, everybody may.
	Token       func() (string, error)
	ClientCerts bool
	// Log receives what goes wrong with a connection.
	Log *slog.Logger
}

const index = `Weir, a rate limit service for Envoy

GET  /healthz  the process is alive
GET  /readyz   it can answer: rules are loaded, the store is reachable, it is not stopping
GET  /status   the same as JSON, with version, store and the last load of the rules
GET  /rules    the rules that are live, and what is wrong with the files if they were refused
GET  /rules/list  the rules a page at a time, with counts: ?search=, sort=denied|asked, offset=, n=
GET  /top      the busiest keys, or the most denied: ?by=hits|denied, domain=, rule=, n=
GET  /explain  which rules a request matches, and what it would be answered: ?domain=..&descriptor=key=value,key=value&hits=1
POST /reload   read the rule files now
GET  /keys/get?domain=D&descriptor=key=value,key=value  the counters of a descriptor; nothing is charged
POST /keys/reset         forget counters: {"domain": D, "descriptor": "key=value"} or {"key": KEY}
GET  /boosts             the temporary factors on limits
POST /boosts             another: {"domain": D, "rule": PATH, "factor": 2, "for": "1h", "reason": TEXT, "author": NAME}
DELETE /boosts/{id}      end one
GET  /metrics  for Prometheus
GET  /version  what was built
`

// NewServer is an HTTP server of the endpoints with every timeout set. It does not listen.
func NewServer(o Options) *http.Server {
	return &http.Server{
		Handler:           NewHandler(o),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      60 * time.Second, // a large rule set over a slow line
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
	}
}

// NewHandler is the endpoints.
func NewHandler(o Options) http.Handler {
	h := &handler{Options: o, explaining: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", root)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", h.ready)
	mux.HandleFunc("GET /rules", h.rules)
	mux.HandleFunc("GET /rules/list", h.listRules)
	mux.HandleFunc("GET /status", h.status)
	mux.HandleFunc("GET /top", h.top)
	mux.HandleFunc("GET /explain", h.explain)
	mux.HandleFunc("POST /reload", h.reload)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, o.Build) })
	mux.Handle("GET /metrics", o.Metrics)
	h.live(mux)
	if o.Pprof {
		profiles(mux)
	}
	// A web page that an operator happens to look at must not be able to reload through the browser.
	return http.MaxBytesHandler(http.NewCrossOriginProtection().Handler(h.protect(mux)), maxBody)
}

// protect lets everybody look, and only those change something or take a profile who may.
func (h *handler) protect(next http.Handler) http.Handler {
	if h.Token == nil && !h.ClientCerts {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		looks := (r.Method == http.MethodGet || r.Method == http.MethodHead) && !strings.HasPrefix(r.URL.Path, debug)
		if looks || h.ClientCerts && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			next.ServeHTTP(w, r)
			return
		}
		if h.Token == nil {
			writeText(w, http.StatusForbidden, "a client certificate is needed (--http-tls-client-ca)\n")
			return
		}
		token, err := h.Token()
		if err != nil {
			h.Log.LogAttrs(r.Context(), slog.LevelError, "the token of HTTP requests cannot be read", slog.String("error", err.Error()))
			writeText(w, http.StatusServiceUnavailable, "the token cannot be read, see the log of the rate limit service\n")
			return
		}
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeText(w, http.StatusUnauthorized, "a token is needed: Authorization: Bearer ... (--http-token-file)\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// debug is where profiles are.
const debug = "/debug/pprof/"

// profiles are on request only: they show the process's inside, and cost CPU. The command line is not among them, since
// the password of a store may be on it.
func profiles(mux *http.ServeMux) {
	mux.HandleFunc("GET "+debug, pprof.Index) // also serves heap, goroutine, block, ...
	mux.HandleFunc("GET "+debug+"profile", pprof.Profile)
	mux.HandleFunc("GET "+debug+"symbol", pprof.Symbol)
	mux.HandleFunc("GET "+debug+"trace", pprof.Trace)
}

type handler struct {
	Options

	explaining chan struct{} // has a place for one that is being answered
}

// ready answers one line for each check, and 503 if one fails.
func (h *handler) ready(w http.ResponseWriter, r *http.Request) {
	ready, checks := h.check(r.Context())
	status, lines := http.StatusOK, []string{"ready"}
	if !ready {
		status, lines[0] = http.StatusServiceUnavailable, "not ready"
	}
	for _, c := range checks {
		ok := "ok"
		if c.Note != "" {
			ok += " (" + c.Note + ")"
		}
		lines = append(lines, c.Name+": "+cmp.Or(c.Error, ok))
	}
	writeText(w, status, strings.Join(lines, "\n")+"\n")
}

func (h *handler) rules(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		RulesStatus
		Rules json.Marshaler `json:"rules"`
	}{h.Rules.Status(), h.Rules.Live()})
}

// reload answers 200 when the files as they are now are live, 422 when they were refused.
func (h *handler) reload(w http.ResponseWriter, r *http.Request) {
	answer := struct {
		Result string `json:"result"`
		RulesStatus
	}{Result: "ok"}
	err := h.Rules.Reload(r.Context())
	answer.RulesStatus = h.Rules.Status()
	if err == nil {
		writeJSON(w, http.StatusOK, answer)
		return
	}
	answer.Result = "refused"
	if len(answer.Errors) == 0 {
		answer.Errors = []string{err.Error()}
	}
	writeJSON(w, http.StatusUnprocessableEntity, answer)
}

func writeText(w http.ResponseWriter, status int, text string) {
	header(w, status, "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // the client has gone: nobody is left to tell
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		writeText(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	header(w, status, "application/json")
	_, _ = w.Write(append(text, '\n')) // as in writeText
}

func header(w http.ResponseWriter, status int, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
}
