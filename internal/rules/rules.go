// Package rules keeps the rules of a process up to date. It reads rule files, published rules in Redis, and rules of a
// control plane, compiles them with pauses so that requests get the CPU, and swaps the active rules.
package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Options are the settings of Rules; the settings that are flags are in Config.
type Options struct {
	Config

	// Redis is the server of --rules store. The caller closes it.
	Redis *store.Redis
	// Process has the process-wide settings of rules; New sets its Rest, Lenient and LenientFiles.
	Process descriptors.Process
	// HoldGC, if not nil, postpones garbage collection for the duration of a load, until release is called.
	HoldGC func() (release func())
	Log    *slog.Logger
}

// Rules holds the active rules of a process and the state of the last load. Its methods are safe for concurrent use.
type Rules struct {
	o         Options
	paths     []string // rule files and their directories
	reloader  *reload.Reloader[compiled]
	published *Follower // nil without rules in Redis
	redis     *store.Redis
	xds       *xds.Source // nil without rules from a control plane
	pacer     pacer
	releaseGC func()                          // ends HoldGC of the load in progress
	prepare   func(next *descriptors.Set)     // called before new rules are active
	after     []func()                        // called after new rules are active
	life      atomic.Pointer[context.Context] // context of Load or Run, which ends a load in progress
	logged    *descriptors.Set                // rules of the last log line about a load; only logLowered uses it
}

type compiled struct {
	set       *descriptors.Set // nil before the first successful load
	files     []string
	published PublishedInfo // Version is 0 if there are none
}

// New returns Rules without any rules; Load loads them. ctx is that of store.Connect.
func New(ctx context.Context, o Options) (*Rules, error) {
	if o.HoldGC == nil {
		o.HoldGC = func() func() { return func() {} }
	}
	r := &Rules{o: o, releaseGC: func() {}}
	r.o.Process.Rest = r.rest
	r.o.Process.Lenient, r.o.Process.LenientFiles = o.LenientRules, xds.Scheme // xDS rules cannot be edited here
	for _, path := range o.Rules {
		switch {
		case path == fromRedis && r.published == nil:
			var err error
			if r.redis, err = o.Redis.ForCommands(ctx); err != nil {
				return nil, err
			}
			r.published = NewPublished(r.redis).Follow(r.logReachable)
		case path == fromXDS && r.xds == nil:
			o.XDS.Log, o.XDS.MaxSize = o.Log, o.MaxRulesSize
			r.xds = xds.New(o.XDS)
		case !isNoPath(path):
			r.paths = append(r.paths, path)
		}
	}
	var err error
	r.reloader, err = reload.New(reload.Options[compiled]{
		Sources: r.sources(), Compile: r.compile, Poll: o.Poll, Settle: o.Settle, OnLoad: r.loaded,
	})
	return r, err
}

// Load loads the rules for the first time. Call it once, before Run. It returns an error if the rules cannot be loaded,
// unless AllowEmptyRules is set. This load and each later one call prepare before the new rules are active, and then
// each after function, in order. These functions must neither fail nor block, because a load waits for them.
func (r *Rules) Load(ctx context.Context, prepare func(next *descriptors.Set), after ...func()) error {
	r.prepare, r.after = prepare, after
	r.life.Store(&ctx)
	if r.xds != nil {
		r.xds.Start(ctx, r.o.Process, r.o.AllowEmptyRules)
	}
	if err := r.reloader.Load(ctx); err != nil && !r.o.AllowEmptyRules {
		return fmt.Errorf("--rules: the rules cannot be loaded:\n%w", err)
	}
	return nil
}

// Close closes the stream to the control plane and the connections to the Redis with published rules.
func (r *Rules) Close() error {
	var errs []error
	if r.xds != nil {
		errs = append(errs, r.xds.Close())
	}
	if r.redis != nil {
		errs = append(errs, r.redis.Close())
	}
	return errors.Join(errs...)
}

// sources returns the sources of rules in order: files, Redis, control plane.
func (r *Rules) sources() (sources []reload.Source) {
	if len(r.paths) > 0 {
		sources = append(sources, SourceFor(r.files()))
	}
	if r.published != nil {
		sources = append(sources, r.published)
	}
	if r.xds != nil {
		sources = append(sources, r.xds)
	}
	return sources
}

// files returns the source of rule files. If a directory disappears while its rules are active, the source returns an
// error, so that these rules stay active.
func (r *Rules) files() reload.Files {
	files := reload.Files{
		Paths: r.paths, EveryFile: r.o.RulesEveryFile, Prefix: r.o.RulesPrefix, MaxSize: r.o.MaxRulesSize,
	}
	if r.o.RulesEveryFile {
		files.Absent = func() bool { return len(r.reloader.Get().files) == 0 }
	}
	return files
}

// rest pauses a load in progress, so that requests get the CPU. It returns an error once the process stops. The first
// load does not pause, because Weir serves no requests yet.
func (r *Rules) rest() error {
	if r.Set() != nil {
		r.pacer.rest()
	}
	return (*r.life.Load()).Err()
}

func (r *Rules) compile(ctx context.Context, files []reload.File) (compiled, error) {
	r.releaseGC = r.o.HoldGC()
	set, err := r.build(ctx, files)
	if err != nil && ctx.Err() != nil {
		r.releaseGC() // the reloader sends no event then
	}
	if err != nil {
		return compiled{}, err
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.Name
	}
	r.prepare(set) // the reloader swaps the rules right after this, and cannot fail
	live := compiled{set: set, files: names}
	if r.published != nil {
		live.published, _ = r.published.Last() // the set just read, because the reloader never reads while it compiles
	}
	return live, nil
}

// build compiles the rule files, then the rules from the control plane.
func (r *Rules) build(ctx context.Context, files []reload.File) (*descriptors.Set, error) {
	process := r.o.Process
	process.Rest = func() error { return cmp.Or(context.Cause(ctx), r.rest()) }
	b := descriptors.NewBuilder(process)
	rulefile.Add(b, Descriptors(slices.DeleteFunc(slices.Clone(files), xds.IsFile)))
	for _, f := range files {
		if xds.IsFile(f) {
			xds.Add(b, f)
		}
	}
	return b.Build()
}

// loaded handles the end of a load. It ends HoldGC, because the replaced rules are garbage now.
func (r *Rules) loaded(e reload.Event) {
	if e.Outcome == reload.Slow {
		r.logLoad(e)
		return
	}
	defer func() { r.releaseGC() }()
	if e.Outcome == reload.Loaded {
		for _, f := range r.after {
			f()
		}
	}
	r.logLoad(e)
}

// Run watches the sources and loads their changes until ctx is done.
func (r *Rules) Run(ctx context.Context) error {
	r.life.Store(&ctx)
	return r.reloader.Run(ctx)
}

// Reload reads the sources now. It returns an error if their rules are refused.
func (r *Rules) Reload(ctx context.Context) error { return r.reloader.Load(ctx) }

// Set returns the active rules, nil if there are none. It costs one atomic load.
func (r *Rules) Set() *descriptors.Set { return r.reloader.Get().set }

// RedisCellStores returns the names of the stores with active limits of the redis-cell module; "" is --store.
func (r *Rules) RedisCellStores() (names []string) {
	set := r.Set()
	if set == nil {
		return nil
	}
	for _, l := range set.Limits() {
		if p := l.Placement(); p.RedisCell && !slices.Contains(names, p.Store) {
			names = append(names, p.Store)
		}
	}
	return names
}

// Effects describes what the limits of a store do while the store fails.
func (r *Rules) Effects(store string) string {
	var limits [descriptors.Fail + 1]int
	if set := r.Set(); set != nil {
		for _, l := range set.Limits() {
			if at := l.Placement(); at.Store == store {
				limits[l.OnStoreFailure]++
			}
		}
	}
	return fmt.Sprintf(
		"of its limits, %d are not enforced, %d are counted in this process, %d deny, %d return an error",
		limits[descriptors.Allow], limits[descriptors.Local], limits[descriptors.Deny], limits[descriptors.Fail])
}

// Ready returns an error that says why requests cannot be decided, or nil.
func (r *Rules) Ready(context.Context) error {
	if r.Set() == nil {
		return errors.New("no rules are loaded yet: " + strings.Join(errorLines(r.reloader.Status().Err), "; "))
	}
	return nil
}

// Note returns what /readyz shows about a ready process: why the active rules are not the newest ones, or "".
func (r *Rules) Note() string {
	s := r.reloader.Status()
	switch {
	case r.Set() == nil:
		return ""
	case !s.Loading.IsZero() && time.Since(s.Loading) > time.Second:
		return fmt.Sprintf("loading newer files since %s; version %s stays in force meanwhile",
			s.Loading.UTC().Format(time.RFC3339), reload.ShortHash(s.Hash))
	case s.Err == nil:
		return ""
	}
	errs := "1 error"
	if n := len(errorLines(s.Err)); n > 1 {
		errs = fmt.Sprintf("%d errors", n)
	}
	return fmt.Sprintf("version %s in force; newest files refused since %s: %s, see GET /rules or the log",
		reload.ShortHash(s.Hash), s.ErrAt.UTC().Format(time.RFC3339), errs)
}

// maxShownWarnings bounds the warnings of a Status. weir check shows all of them.
const maxShownWarnings = 100

// Status returns the state of the rules for GET /rules.
func (r *Rules) Status() adminapi.RulesStatus {
	s, live := r.reloader.Status(), r.reloader.Get()
	status := adminapi.RulesStatus{
		Hash: s.Hash, LoadedAt: s.LoadedAt, Files: live.files,
		Errors: errorLines(s.Err), ErrorsAt: s.ErrAt, LoadingSince: s.Loading, Published: r.Published(), XDS: r.XDS(),
	}
	if live.set != nil {
		warnings := live.set.Warnings()
		status.WarningCount = warnings.Count()
		for _, w := range warnings[:min(len(warnings), maxShownWarnings)] {
			status.Warnings = append(status.Warnings, w.Error())
		}
	}
	return status
}

// Published returns the state of the rules in Redis, nil without --rules store.
func (r *Rules) Published() *adminapi.PublishedStatus {
	if r.published == nil {
		return nil
	}
	live := r.reloader.Get().published
	newest, outage := r.published.Last()
	s := &adminapi.PublishedStatus{
		Version: live.Version, Hash: live.Hash, Author: live.Author, PublishedAt: live.PublishedAt, Newest: newest.Version,
	}
	if outage != nil {
		s.Error = outage.Error()
	}
	return s
}

// XDS returns the state of the rules from a control plane, nil without --rules xds.
func (r *Rules) XDS() *adminapi.XDSStatus {
	if r.xds == nil {
		return nil
	}
	return r.xds.Status()
}

// A load pauses for loadPause after loadWork of work, so that requests get the CPU.
const (
	loadWork  = 8 * time.Millisecond
	loadPause = time.Millisecond
)

// pacer pauses long work. Its zero value is ready. It is safe for concurrent use.
type pacer struct {
	mu    sync.Mutex
	since time.Time // end of the last pause
}

// rest pauses if the last pause ended at least loadWork ago.
func (p *pacer) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.since) >= loadWork {
		<-time.After(loadPause)
		runtime.Gosched() // after a timer, this goroutine runs before goroutines that are already waiting
		p.since = time.Now()
	}
}
