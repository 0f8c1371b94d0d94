package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/breather"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/published"
	"github.com/weir-ratelimit/weir/internal/rulefiles"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/fileread"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

var _ admin.Rules = (*rules)(nil)

// maxLoggedErrors bounds the line of a refused load; GET /rules has them all.
const maxLoggedErrors = 20

// rules are the rule files: the set that is live, and what became of the last load.
type rules struct {
	reloader   *reload.Reloader[compiled]
	published  *published.Follower // nil without the rules in Redis
	metrics    *metrics.Metrics
	log        *slog.Logger
	process    descriptors.Process
	prepare    func(*descriptors.Set) // called before rules go live,
	live       func()                 // and when they have
	allowEmpty bool
	stores     []string // that limits may name
	breather   breather.Breather
	holdGC     func() (release func())
	releaseGC  func()      // after the load that is under way
	paths      []string    // of rule files
	looking    atomic.Bool // for files that are not read
}

// compiled is what one load made.
type compiled struct {
	set       *descriptors.Set // nil before the first good load
	files     []string
	published published.Info // of version 0: none
}

// loadRules loads the rules for the first time, which must succeed unless they may be empty.
func loadRules(
	ctx context.Context, o *Options, m *metrics.Metrics, prepare func(*descriptors.Set), live func(),
) (loaded *rules, err error) {
	process, err := o.process()
	if err != nil {
		return nil, err
	}
	r := &rules{
		process: process, metrics: m, log: o.Log, prepare: prepare, live: live, allowEmpty: o.AllowEmptyRules,
		paths:  slices.DeleteFunc(slices.Clone(o.Rules), func(path string) bool { return path == rulesStore }),
		stores: slices.Sorted(maps.Keys(o.NamedStores)), holdGC: o.HoldGC, releaseGC: func() {},
	}
	if r.holdGC == nil {
		r.holdGC = func() func() { return func() {} }
	}
	r.process.Rest = r.rest
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	source, err := r.source(o) //nolint:contextcheck // it does not connect
	if err != nil {
		return nil, err
	}
	r.reloader, err = reload.New(reload.Options[compiled]{
		Source:  source,
		Compile: r.compile,
		Poll:    o.RulesPoll,
		Settle:  o.RulesSettle,
		OnLoad:  r.loaded,
	})
	if err != nil {
		return nil, err
	}
	if err := r.reloader.Load(ctx); err != nil && !o.AllowEmptyRules {
		return nil, fmt.Errorf("--rules: the rules cannot be loaded:\n%w", err)
	}
	return r, nil
}

// rest pauses a load that is under way. The first has no requests beside it.
func (r *rules) rest() {
	if r.set() != nil {
		r.breather.Rest()
	}
}

func (r *rules) compile(files []reload.File) (compiled, error) {
	r.releaseGC = r.holdGC()
	set, err := descriptors.CompileFor(r.process, rulefiles.Descriptors(files))
	if err != nil {
		return compiled{}, err
	}
	if unknown := set.UnknownStores(r.stores); unknown != nil {
		return compiled{}, unknown
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.Name
	}
	r.metrics.RulesCompiled(set) // the swap follows at once, and cannot fail
	r.prepare(set)
	live := compiled{set: set, files: names}
	if r.published != nil {
		live.published, _ = r.published.Last() // what these files were read from: reading and compiling take turns
	}
	return live, nil
}

// loaded logs and counts what became of a load.
func (r *rules) loaded(e reload.Event) {
	defer func() { r.releaseGC() }() // the rules of before are garbage now
	attrs := []slog.Attr{
		slog.String("reason", string(e.Reason)),
		slog.String("rules", reload.ShortHash(e.Hash)),
		slog.Int("files", e.Files),
		slog.Duration("took", e.Took),
	}
	log := slog.New(r.log.Handler().WithAttrs(append(attrs, r.version()...)))
	ctx := context.Background()
	switch e.Outcome {
	case reload.Loaded:
		r.metrics.RulesLoaded(e.Hash)
		r.live()
		set := r.set()
		log.LogAttrs(ctx, slog.LevelInfo, "rules loaded",
			slog.Int("domains", len(set.Domains())), slog.Int("limits", len(set.Limits())))
		r.warnUnread()
	case reload.Restored:
		r.metrics.RulesRestored()
		log.LogAttrs(ctx, slog.LevelInfo, "rules are again as the live ones")
	case reload.Refused:
		r.metrics.RulesRefused()
		if e.Reason == reload.ReasonStart && !r.allowEmpty {
			return // the process ends, and says why
		}
		lines := errorLines(e.Err)
		if hung := hungFile(e.Err); hung != nil {
			log.LogAttrs(ctx, slog.LevelError, "rules are stale, the live ones stay: a file does not answer",
				slog.String("path", hung.Path), slog.Time("since", hung.Since), slog.Any("errors", lines[:min(len(lines), maxLoggedErrors)]))
			return
		}
		log.LogAttrs(ctx, slog.LevelError, "rules refused, the live ones stay",
			slog.Int("error_count", len(lines)), slog.Any("errors", lines[:min(len(lines), maxLoggedErrors)]))
	case reload.Unwatched:
		r.unwatched(e.Err)
	}
}

// list is lines of text: an array in JSON, and in text one string.
type list []string

// MarshalText makes slog's text handler show the lines.
func (l list) MarshalText() ([]byte, error) { return []byte(strings.Join(l, "; ")), nil }

// MarshalJSON keeps encoding/json from using MarshalText.
func (l list) MarshalJSON() ([]byte, error) { return json.Marshal([]string(l)) }

// errorLines is each thing that was wrong.
func errorLines(err error) list {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

// set is what requests are decided by: one atomic load. Nil if there is none.
func (r *rules) set() *descriptors.Set { return r.reloader.Get().set }

// storesOf are the names of the stores in which live limits have the engine; "" is the first one.
func (r *rules) storesOf(e limiter.Engine) (names []string) {
	set := r.set()
	if set == nil {
		return nil
	}
	for _, l := range set.Limits() {
		if name := l.Policy.Store(); l.Policy.Engine() == e && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// run follows the files until ctx is done.
func (r *rules) run(ctx context.Context) error { return r.reloader.Run(ctx) }

// ready says whether requests can be decided.
func (r *rules) ready(context.Context) error {
	if r.set() == nil {
		return errors.New("none are loaded yet: " + strings.Join(errorLines(r.reloader.Status().Err), "; "))
	}
	return nil
}

// note says for /readyz what is not as it should be although requests can be decided; empty if all is well.
func (r *rules) note() string {
	s := r.reloader.Status()
	if s.Err == nil || r.set() == nil {
		return ""
	}
	if hung := hungFile(s.Err); hung != nil {
		return fmt.Sprintf("stale since %s: reading %s has not returned; version %s stays in force",
			hung.Since.UTC().Format(time.RFC3339), hung.Path, reload.ShortHash(s.Hash))
	}
	errs := "1 error"
	if n := len(errorLines(s.Err)); n > 1 {
		errs = fmt.Sprintf("%d errors", n)
	}
	return fmt.Sprintf("version %s in force; newest files refused since %s: %s, see GET /rules or the log",
		reload.ShortHash(s.Hash), s.ErrAt.UTC().Format(time.RFC3339), errs)
}

// hungFile is the file that hung, if that is what the error is about.
func hungFile(err error) (hung *fileread.HungError) {
	errors.As(err, &hung)
	return hung
}

// Reload implements admin.Rules.
func (r *rules) Reload(ctx context.Context) error { return r.reloader.Load(ctx) }

// Live implements admin.Rules.
func (r *rules) Live() json.Marshaler {
	if set := r.set(); set != nil {
		return set
	}
	return nil
}

// Status implements admin.Rules.
func (r *rules) Status() admin.RulesStatus {
	s := r.reloader.Status()
	return admin.RulesStatus{
		Hash:      s.Hash,
		LoadedAt:  s.LoadedAt,
		Files:     r.reloader.Get().files,
		Errors:    errorLines(s.Err),
		ErrorsAt:  s.ErrAt,
		Published: r.publishedStatus(),
	}
}
