// Package admin serves HTTP for people, probes and Prometheus: liveness and readiness, the active rules and their
// reload, counters and metrics.
package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of the server.
const (
	readyTimeout = 500 * time.Millisecond // for all checks of one /readyz: half of Kubernetes' default timeout of a probe
	checkFresh   = time.Second            // how long the result of a remote check is reused
	maxBody      = 16 << 10               // maximum size of a reset's body, in bytes
	maxHeader    = 16 << 10               // maximum size of a request's headers, in bytes
)

// Check is a condition of readiness.
type Check struct {
	// Name is the word before the colon in the response of /readyz.
	Name string
	// Err returns an error if the condition does not hold, without secrets. It must return soon after ctx is done.
	Err func(ctx context.Context) error
	// Note, if not nil, returns a remark for operators while the condition holds, or "".
	Note func() string
	// Remote means that Err calls a server. Such an Err runs at most once a second, and not concurrently.
	Remote bool
}

// Rules are the rule files and their state.
type Rules interface {
	// Status returns the state of the last load.
	Status() adminapi.RulesStatus
	// Set returns the active rules, or nil.
	Set() *descriptors.Set
	// Reload reads the files now. Its error is also in the next Status.
	Reload(ctx context.Context) error
}

// Options are the parts of the process that the handler shows, and settings without a flag.
type Options struct {
	Config

	// Checks are run by /readyz, in this order.
	Checks []Check
	Rules  Rules
	// Explain returns the response to GET /explain, or an error about the query, or one that wraps limiter.ErrUnavailable.
	Explain func(ctx context.Context, query url.Values) (any, error)
	// Counters serves /keys/get and /keys/reset.
	Counters *Counters
	// Metrics serves GET /metrics.
	Metrics http.Handler
	// Build is the response to GET /version.
	Build adminapi.Build
	// Decisions returns how often a limit had each outcome, by decide.Outcome, including requests that Envoys decided by
	// quotas. It returns nil if the limit has no counts of its own.
	Decisions func(*descriptors.Limit) []uint64
	// Reservation returns the counts of a limit's reservation, or nil.
	Reservation func(*descriptors.Limit) *adminapi.ReservationCounts
	// Top returns the response to GET /top; nil if keys are not counted.
	Top func(topkeys.Query) (adminapi.TopKeys, error)
	// Quotas returns the part of /status about quotas of Envoys; nil without quotas.
	Quotas func() adminapi.QuotaStatus
	// History serves GET /history; nil if counts over time are not kept.
	History *History
	// Degraded returns the effect on limits while only a Remote check fails. It runs after that check.
	Degraded func(ctx context.Context) string
	// Store describes the store of the counters. StartedAt is the start of the process.
	Store     string
	StartedAt time.Time
	// Counted returns an error if the store has not counted since the process started. It may be nil.
	Counted func(ctx context.Context) error
	// DecideJSON decides a request in protobuf's JSON form, with --http-json. If DecideGuarded is true, it requires the
	// same rights as changing state.
	DecideJSON    func(ctx context.Context, body io.Reader) (answer []byte, isOver bool, err error)
	DecideGuarded bool
	// Token returns the token; nil means the token in --http-token-file. It runs for each request that changes state,
	// takes a profile or sees values of keys. Such a request requires the token as "Authorization: Bearer ...", or a
	// verified client certificate with --http-tls-client-ca; without either, it must use the admin socket.
	Token func() (string, error)
	// ClassicText writes a line per metric of envoyproxy/ratelimit.
	ClassicText func(w io.Writer) error
	// Panicked counts a panic of a request.
	Panicked func()
	// Guard bounds the connections of --http-addr, and Budget the memory that all clients occupy.
	Guard  *conns.Guard
	Budget *conns.Budget
	// Embedded allows sharing the addresses with a previous Weir that is still stopping.
	Embedded bool
	// Log receives a line for each change of state.
	Log *slog.Logger
}

// The list of endpoints is between these texts.
const (
	indexStart = "Weir, a rate limit service for Envoy\n\n"
	indexEnd   = `
Programs write /api/v1 before these paths. An error is {"error": TEXT}. POST, and reading values of keys,
require the admin socket (--admin-socket), the token (--http-token-file) or a client certificate.
`
)

// NewServer returns an HTTP server for the endpoints, with every timeout set. The server does not listen yet.
func NewServer(o Options) *http.Server { return newServer(newHandler(o).serve()) }

// api is the prefix of the paths for programs. Without the prefix, the paths are for people and compatibility.
const api = "/api/v1"

func newHandler(o Options) *handler {
	h := &handler{
		Options: o, tokenLine: logging.Every{Interval: tokenLines}, wrongLine: logging.Every{Interval: time.Second},
		reloads: newShared[error](),
	}
	if h.Token == nil && o.HTTPTokenFile != "" {
		h.Token = h.token
	}
	h.Checks = slices.Clone(o.Checks)
	for i, c := range o.Checks {
		if !c.Remote {
			continue
		}
		newest := newShared[error]()
		h.Checks[i].Err = func(ctx context.Context) error {
			return newest.get(checkFresh, func() error {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
				defer cancel()
				err := c.Err(ctx)
				if err != nil && o.Degraded != nil {
					said := o.Degraded(ctx)
					h.degraded.Store(&said)
				}
				return err
			})
		}
	}
	return h
}

// Route is an endpoint. A Route without a method serves all methods. A Versioned route is also served below /api/v1.
type Route struct {
	Method, Path string
	Versioned    bool

	help    string // a line of the list of endpoints; "" if it is not listed
	handler http.HandlerFunc
}

// Routes returns the endpoints of a server with these options, as patterns of the mux.
func Routes(o Options) []Route { return newHandler(o).routes() }

func (h *handler) routes() []Route {
	all := []Route{
		{
			"GET", "/healthz", true, "the process is alive",
			func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") },
		},
		{
			"GET", "/readyz", true, "rules are loaded, the store is reachable, no stop has begun; ?exclude=store", h.ready,
		},
		{
			"GET", "/status", true, "readiness as JSON, with version, store and the last load of the rules",
			answers(func(r *http.Request) (adminapi.Status, error) { return h.status(r.Context()), nil }),
		},
		{
			"GET", "/rules", true, "the rules in pages, with counts; if rule files were refused, their errors:" + indent +
				"?search=, sort=denied|requests, offset=, n=, history=true; or one rule: ?domain=, rule=PATH",
			inTurn(answers(h.rules)),
		},
		{
			"GET", "/history", true, "allowed, denied and near the limit over the last hour, and the limits that denied most",
			answers(h.history),
		},
		{
			"GET", "/top", true, "the busiest keys, or the most denied: ?by=hits|denied, domain=, rule=, n=",
			answers(h.top),
		},
		{
			"GET", "/explain", true, "which rules a request matches, and its response:" + indent +
				"?domain=..&descriptor=key=value,key=value&hits=1", inTurn(answers(h.explain)),
		},
		{"POST", "/reload", true, "read the rule files now", h.reload},
		{
			"GET", "/keys/get", true, "the counters of a descriptor; nothing is charged:" + indent +
				"?domain=D&descriptor=key=value,key=value", answers(h.getKey),
		},
		{
			"POST", "/keys/reset", true, `delete counters: {"domain": D, "descriptor": "key=value"}`, answers(h.resetKey),
		},
		{"GET", "/metrics", true, "for Prometheus", scraped(h.Metrics)},
		{
			"GET", "/version", true, "version and build",
			answers(func(*http.Request) (adminapi.Build, error) { return h.Build, nil }),
		},
		{
			"GET", "/healthcheck", false, "200 from the first response of the store until the process stops", h.healthcheck,
		},
		{"GET", "/{$}", false, "", h.root},
	}
	if h.HTTPJSON {
		all = append(all, Route{"", jsonPath, false, "decide a RateLimitRequest, as JSON", h.decideJSON})
	}
	if h.Pprof {
		all = append(all, profiles()...)
	}
	return all
}

// indent begins a second line in the list of endpoints.
const indent = "\n                   "

// serve returns the handler of all endpoints, behind the checks that every request must pass.
func (h *handler) serve() http.Handler {
	mux := http.NewServeMux()
	h.index = indexStart
	for _, r := range h.routes() {
		if r.help != "" {
			h.index += fmt.Sprintf("%-4s %-13s %s\n", r.Method, r.Path, r.help)
		}
		mux.HandleFunc(strings.TrimSpace(r.Method+" "+r.Path), r.handler)
		if r.Versioned {
			mux.HandleFunc(r.Method+" "+api+r.Path, r.handler)
		}
	}
	h.index += indexEnd
	mux.HandleFunc("/", h.missing)
	// A web page in an operator's browser must not be able to reload the rules.
	crossOrigin := http.NewCrossOriginProtection()
	crossOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, refused(http.StatusForbidden, "a web page of another origin must not change the state of Weir"))
	}))
	return http.MaxBytesHandler(crossOrigin.Handler(h.protect(mux)), maxJSON)
}

type handler struct {
	Options

	index    string // list of the endpoints
	reloads  *shared[error]
	stopping atomic.Bool
	degraded atomic.Pointer[string] // the last result of Options.Degraded

	tokenLine   logging.Every // bounds the log lines about an unreadable token
	wrongLine   logging.Every // bounds the log lines about a wrong token
	wrongTokens atomic.Uint64
}

// explain serves GET /explain.
func (h *handler) explain(r *http.Request) (any, error) {
	answer, err := h.Explain(r.Context(), r.URL.Query())
	if err != nil && !errors.Is(err, limiter.ErrUnavailable) {
		err = invalid("%s", err)
	}
	return answer, err
}

// ready responds with one line per check, and with 503 if one fails. ?exclude=store skips a check, as in Kubernetes.
func (h *handler) ready(w http.ResponseWriter, r *http.Request) {
	exclude := r.URL.Query()["exclude"]
	ready, checks := h.check(r.Context(), exclude...)
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

// reload responds with 200 if the current files are active, and with 422 if they were refused.
func (h *handler) reload(w http.ResponseWriter, r *http.Request) {
	answer := adminapi.Reloaded{Result: "ok"}
	ctx := context.WithoutCancel(r.Context())
	err := h.reloads.get(0, func() error { return h.Rules.Reload(ctx) })
	h.audit(r, "reload", err)
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

// maxShownErrors is the maximum number of errors in a status; the log and weir check show more.
const maxShownErrors = 100

// check runs all checks except the excluded ones.
func (h *handler) check(ctx context.Context, exclude ...string) (ready bool, checks []adminapi.Check) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	ready = true
	for _, c := range h.Checks {
		if slices.Contains(exclude, c.Name) {
			continue
		}
		shown := adminapi.Check{Name: c.Name}
		if err := c.Err(ctx); err != nil {
			ready, shown.Error = false, err.Error()
		} else if c.Note != nil {
			shown.Note = c.Note()
		}
		checks = append(checks, shown)
	}
	return ready, checks
}

// decides reports whether the process decides requests although checks fail, as it does if only remote checks fail.
func (h *handler) decides(checks []adminapi.Check) bool {
	for i, c := range checks {
		if c.Error != "" && !h.Checks[i].Remote {
			return false
		}
	}
	return true
}

// status returns the response to GET /status.
func (h *handler) status(ctx context.Context) adminapi.Status {
	s := adminapi.Status{
		Build: h.Build, StartedAt: h.StartedAt, Now: time.Now(), Store: h.Store, TopKeys: h.Top != nil,
	}
	s.Ready, s.Checks = h.check(ctx)
	if said := h.degraded.Load(); said != nil && !s.Ready && h.decides(s.Checks) {
		s.Degraded = *said
	}
	if h.Quotas != nil {
		quotas := h.Quotas()
		s.Quotas = &quotas
	}
	s.Rules = h.rulesSummary()
	s.Problem = problem(&s)
	return s
}

// problem returns a sentence about the most important thing that is wrong, or "".
func problem(s *adminapi.Status) string {
	r, published, xds := &s.Rules, s.Rules.Published, s.Rules.XDS
	keeps := " and has no rules"
	if r.Hash != "" {
		keeps = " and keeps the rules of " + r.LoadedAt.UTC().Format(time.RFC3339)
	}
	switch {
	case s.Degraded != "":
		return s.Degraded
	case r.ErrorCount > 0:
		return fmt.Sprintf("Weir refused the newest rules at %s%s: %s (error 1 of %d)", r.ErrorsAt.UTC().Format(time.RFC3339),
			keeps, r.Errors[0], r.ErrorCount)
	case published != nil && published.Error != "":
		return "Weir cannot read the published rules" + keeps + ": " + published.Error
	case xds != nil && xds.Error != "":
		return "Weir cannot reach the control plane " + xds.Server + keeps + ": " + xds.Error
	case xds != nil && xds.FindingCount > 0:
		return fmt.Sprintf("Weir refused rules of the control plane: %s (finding 1 of %d)", xds.Findings[0], xds.FindingCount)
	}
	for _, c := range s.Checks {
		if c.Error != "" {
			return "Weir is not ready: " + c.Name + ": " + c.Error
		}
	}
	return ""
}

func (h *handler) rulesSummary() adminapi.RulesSummary {
	s := adminapi.RulesSummary{RulesStatus: h.Rules.Status()}
	s.Files, s.ErrorCount = len(s.RulesStatus.Files), len(s.Errors)
	s.Errors = s.Errors[:min(len(s.Errors), maxShownErrors)]
	if set := h.Rules.Set(); set != nil {
		s.Domains, s.Limits = len(set.Domains()), len(set.Limits())
		for _, d := range set.Domains() {
			s.Rules += len(d.Rules())
		}
	}
	return s
}
