// Package admin is the process over HTTP, for people, probes and Prometheus: is it alive, is it ready, which
// rules are live, load them again now.
package admin

import (
	"cmp"
	"context"
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
)

// Bounds of the server.
const (
	readyTimeout = 500 * time.Millisecond // all checks of one /readyz together: half of a Kubernetes probe's patience
	checkFresh   = time.Second            // how long the result of a check that asks a server is used again
	maxBody      = 16 << 10               // bytes: of a reset
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
	// Remote says that Err asks a server. It is called at most once a second, and one at a time.
	Remote bool
}

// Rules are the rule files and what became of them.
type Rules interface {
	// Status is the state of the last load.
	Status() adminapi.RulesStatus
	// Set is the rules in force, nil if there are none.
	Set() *descriptors.Set
	// Reload reads the files now. Its error is in the Status after it, too.
	Reload(ctx context.Context) error
}

// Options are what the handler shows, and what no flag changes.
type Options struct {
	Config

	// Checks are asked by /readyz, in this order.
	Checks []Check
	Rules  Rules
	// Explain answers GET /explain, as something for JSON. The error says what is wrong with the query.
	Explain func(ctx context.Context, query url.Values) (any, error)
	// Counters answers /keys/get and /keys/reset.
	Counters *Counters
	// Metrics answers GET /metrics.
	Metrics http.Handler
	// Build answers GET /version.
	Build adminapi.Build
	// Decisions is how often a limit had each outcome, by decide.Outcome, also in requests that Envoys decided by quotas;
	// nil if that is not counted for it alone.
	Decisions func(*descriptors.Limit) []uint64
	// Top answers GET /top. Nil: keys are not counted.
	Top func(topkeys.Query) (adminapi.TopKeys, error)
	// Quotas is what /status shows of the parts of limits that are assigned to Envoys. Nil: none are assigned here.
	Quotas func() adminapi.QuotaStatus
	// History answers GET /history. Nil: counts over time are not kept.
	History *History
	// Degraded says what limits do while only a Remote check fails. It is asked with the check.
	Degraded func(ctx context.Context) string
	// Store is what counters are kept in, StartedAt when the process started.
	Store     string
	StartedAt time.Time
	// Counted is why the store has not counted since the process started; nil if it has. The function may be nil, too.
	Counted func(ctx context.Context) error
	// DecideJSON decides a request in protobuf's JSON form, with --http-json. DecideGuarded says that it needs what
	// changing state needs.
	DecideJSON    func(ctx context.Context, body io.Reader) (answer []byte, isOver bool, err error)
	DecideGuarded bool
	// Token is read for each request that changes something, asks for a profile or sees values of keys: such a request
	// needs it as "Authorization: Bearer ...", or a verified client certificate with --http-tls-client-ca. With neither,
	// only requests through NewSocketServer may. Nil is the token in --http-token-file.
	Token func() (string, error)
	// ClassicText writes a line for each metric of envoyproxy/ratelimit.
	ClassicText func(w io.Writer) error
	// Panicked counts a panic of a request.
	Panicked func()
	// Guard bounds the connections of --http-addr, and Budget what waits for all clients.
	Guard  *conns.Guard
	Budget *conns.Budget
	// Embedded lets another Weir have the same addresses: the one before this one, which still ends.
	Embedded bool
	// Log has a line for each change of state.
	Log *slog.Logger
}

const index = `Weir, a rate limit service for Envoy

GET  /healthz  the process is alive
GET  /readyz   it can answer: rules are loaded, the store is reachable, it is not stopping; ?exclude=store
GET  /status   the same as JSON, with version, store and the last load of the rules
GET  /rules    the rules a page at a time, with counts, and what is wrong with the files if they were refused:
               ?search=, sort=denied|asked, offset=, n=, history=true; or one: ?domain=, rule=PATH
GET  /history  allowed, denied and near the limit over the last hour, and the limits that denied most
GET  /top      the busiest keys, or the most denied: ?by=hits|denied, domain=, rule=, n=
GET  /explain  which rules a request matches, and its answer: ?domain=..&descriptor=key=value,key=value&hits=1
POST /reload   read the rule files now
GET  /keys/get?domain=D&descriptor=key=value,key=value  the counters of a descriptor; nothing is charged
POST /keys/reset         forget counters: {"domain": D, "descriptor": "key=value"}
GET  /metrics  for Prometheus
GET  /healthcheck  200 once the store has answered, until the process stops: as envoyproxy/ratelimit
     /json     with --http-json: decide a RateLimitRequest, as JSON
GET  /version  what was built

Programs write /api/v1 before these paths. An error is {"error": TEXT}. POST and values of keys
need the admin socket (--admin-socket), the token (--http-token-file) or a client certificate.
`

// NewServer is an HTTP server of the endpoints with every timeout set. It does not listen.
func NewServer(o Options) *http.Server { return newServer(newHandler(o).serve()) }

// api begins the paths that programs are to use. The same without it are kept for people, and for what was there
// before.
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

// Route is an endpoint. A route without a method answers to all. One that is Versioned is also there below /api/v1.
type Route struct {
	Method, Path string
	Versioned    bool

	handler http.HandlerFunc
}

// Routes are the endpoints of a server with these options, as the mux knows them.
func Routes(o Options) []Route { return newHandler(o).routes() }

func (h *handler) routes() []Route {
	all := []Route{
		{"GET", "/healthz", true, func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") }},
		{"GET", "/readyz", true, h.ready},
		{"GET", "/rules", true, inTurn(answers(h.rules))},
		{"GET", "/status", true, answers(func(r *http.Request) (adminapi.Status, error) {
			return h.status(r.Context()), nil
		})},
		{"GET", "/history", true, answers(h.history)},
		{"GET", "/top", true, answers(h.top)},
		{"GET", "/explain", true, inTurn(answers(h.explain))},
		{"POST", "/reload", true, h.reload},
		{"GET", "/keys/get", true, answers(h.getKey)},
		{"POST", "/keys/reset", true, answers(h.resetKey)},
		{"GET", "/version", true, answers(func(*http.Request) (adminapi.Build, error) { return h.Build, nil })},
		{"GET", "/metrics", true, scraped(h.Metrics)},
		{"GET", "/{$}", false, root},
		{"GET", "/healthcheck", false, h.healthcheck},
	}
	if h.HTTPJSON {
		all = append(all, Route{"", jsonPath, false, h.decideJSON})
	}
	if h.Pprof {
		all = append(all, profiles()...)
	}
	return all
}

// serve is the endpoints with what every request passes before.
func (h *handler) serve() http.Handler {
	mux := http.NewServeMux()
	for _, r := range h.routes() {
		mux.HandleFunc(strings.TrimSpace(r.Method+" "+r.Path), r.handler)
		if r.Versioned {
			mux.HandleFunc(r.Method+" "+api+r.Path, r.handler)
		}
	}
	mux.HandleFunc("/", h.missing)
	// A web page that an operator happens to look at must not be able to reload through the browser.
	crossOrigin := http.NewCrossOriginProtection()
	crossOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, refused(http.StatusForbidden, "a web page of another origin may not change anything here"))
	}))
	return http.MaxBytesHandler(crossOrigin.Handler(h.protect(mux)), maxJSON)
}

type handler struct {
	Options

	reloads  *shared[error]
	stopping atomic.Bool
	degraded atomic.Pointer[string] // what Options.Degraded said when a Remote check failed last

	tokenLine   logging.Every // about a token that cannot be read
	wrongLine   logging.Every // about a wrong token
	wrongTokens atomic.Uint64
}

// explain answers one question at a time, since one among many rules may take a CPU for a while.
func (h *handler) explain(r *http.Request) (any, error) {
	answer, err := h.Explain(r.Context(), r.URL.Query())
	if err != nil {
		return nil, invalid("%s", err)
	}
	return answer, nil
}

// ready answers one line for each check, and 503 if one fails. As with Kubernetes' own /readyz, ?exclude=store leaves a
// check out.
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

// reload answers 200 when the files as they are now are live, 422 when they were refused.
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

// maxShownErrors bounds the errors in a status; the log and weir check have more.
const maxShownErrors = 100

// check asks every check.
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

// decides reports whether the process decides requests although checks fail: only those that ask a server do.
func (h *handler) decides(checks []adminapi.Check) bool {
	for i, c := range checks {
		if c.Error != "" && !h.Checks[i].Remote {
			return false
		}
	}
	return true
}

// status is the answer of GET /status.
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
	return s
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
