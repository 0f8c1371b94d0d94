// Package rules keeps the compiled rules of a process up to date: it reads rule files and what is published in Redis,
// compiles them at a pace that requests do not notice, and swaps the set in force.
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

// Options are the parts of Rules, and what no flag changes.
type Options struct {
	Config

	// Redis has the sets of --rules store. The caller closes it.
	Redis *store.Redis
	// Process is what rule files leave to the process; its Rest and leniency are set here.
	Process descriptors.Process
	// HoldGC, if not nil, puts garbage collections off until release is called, for the time of a load.
	HoldGC func() (release func())
	Log    *slog.Logger
}

// Rules are the rules of a process: the set in force and the state of the last load. Its methods are safe for
// concurrent use.
type Rules struct {
	o         Options
	paths     []string // of rule files, and directories of them
	reloader  *reload.Reloader[compiled]
	published *Follower // nil without rules in Redis
	redis     *store.Redis
	xds       *xds.Source // nil without rules of a control plane
	pacer     pacer
	releaseGC func()                          // ends the hold of the load in progress
	prepare   func(next *descriptors.Set)     // called before a set is in force
	after     []func()                        // called once it is
	life      atomic.Pointer[context.Context] // of Load or Run: loads in progress end with it
	logged    *descriptors.Set                // of the last line about a load; only logLowered uses it
}

// compiled is the result of one load.
type compiled struct {
	set       *descriptors.Set // nil before the first good load
	files     []string
	published PublishedInfo // of version 0: none
}

// New returns the rules before they are loaded: there are none.
func New(o Options) (*Rules, error) {
	if o.HoldGC == nil {
		o.HoldGC = func() func() { return func() {} }
	}
	r := &Rules{o: o, releaseGC: func() {}}
	r.o.Process.Rest = r.rest
	r.o.Process.Lenient, r.o.Process.LenientFiles = o.LenientRules, xds.Scheme // nobody can mend the latter here
	for _, path := range o.Rules {
		switch {
		case path == fromRedis && r.published == nil:
			var err error
			if r.redis, err = o.Redis.ForCommands(); err != nil {
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

// Load loads the rules for the first time, which must succeed unless they may be empty. It calls prepare before these
// rules, and all that come later, are in force, and after, in this order, once they are. None may fail or wait: a
// reload waits for them. Call it once, before Run.
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

// Close ends the stream to a control plane, and the connections to the Redis with published rules.
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

// sources are where the rules come from: files, then what is published, then what a control plane has sent.
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

// files are the files at the paths. A directory that goes away while its rules are in force is an error, so that they
// stay.
func (r *Rules) files() reload.Files {
	files := reload.Files{
		Paths: r.paths, EveryFile: r.o.RulesEveryFile, Prefix: r.o.RulesPrefix, MaxSize: r.o.MaxRulesSize,
	}
	if r.o.RulesEveryFile {
		files.Absent = func() bool { return len(r.reloader.Get().files) == 0 }
	}
	return files
}

// rest pauses a load in progress, or ends it when the process stops. The first load has no requests to make room for.
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
		r.releaseGC() // there will be no event
	}
	if err != nil {
		return compiled{}, err
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.Name
	}
	r.prepare(set) // the swap follows at once, and cannot fail
	live := compiled{set: set, files: names}
	if r.published != nil {
		live.published, _ = r.published.Last() // the set that was just read: reading and compiling take turns
	}
	return live, nil
}

// build compiles rule files, and then what came by xDS.
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

// loaded reports the end of a load. The rules that it replaced are garbage then.
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

// Run follows the sources until ctx is done.
func (r *Rules) Run(ctx context.Context) error {
	r.life.Store(&ctx)
	return r.reloader.Run(ctx)
}

// Reload reads the sources now. Its error is why what they hold is not in force.
func (r *Rules) Reload(ctx context.Context) error { return r.reloader.Load(ctx) }

// Set returns the rules in force, by one atomic load; nil if there are none.
func (r *Rules) Set() *descriptors.Set { return r.reloader.Get().set }

// RedisCellStores returns the names of the stores in which the redis-cell module decides limits in force; "" is the
// first store.
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

// Effects says what the limits of a store do while it fails.
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
		"%d of its limits are not enforced, %d are counted in this process, %d deny, %d answer with an error",
		limits[descriptors.Allow], limits[descriptors.Local], limits[descriptors.Deny], limits[descriptors.Fail])
}

// Ready returns why requests cannot be decided; nil if they can.
func (r *Rules) Ready(context.Context) error {
	if r.Set() == nil {
		return errors.New("none are loaded yet: " + strings.Join(errorLines(r.reloader.Status().Err), "; "))
	}
	return nil
}

// Note returns what /readyz shows although requests can be decided: why the rules are not the newest ones. Empty if
// they are.
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

// maxShownWarnings bounds the warnings of a Status; weir check shows all.
const maxShownWarnings = 100

// Status is what GET /rules shows of the last load.
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

// Published is the state of the rules in Redis, nil without them.
func (r *Rules) Published() *adminapi.PublishedStatus {
	if r.published == nil {
		return nil
	}
	live := r.reloader.Get().published
	newest, away := r.published.Last()
	s := &adminapi.PublishedStatus{
		Version: live.Version, Hash: live.Hash, Author: live.Author, PublishedAt: live.PublishedAt, Newest: newest.Version,
	}
	if away != nil {
		s.Error = away.Error()
	}
	return s
}

// XDS is the state of the rules that come by xDS, nil without them.
func (r *Rules) XDS() *adminapi.XDSStatus {
	if r.xds == nil {
		return nil
	}
	return r.xds.Status()
}

// A load works for loadWork, then pauses for loadPause, so that requests get a CPU soon.
const (
	loadWork  = 8 * time.Millisecond
	loadPause = time.Millisecond
)

// pacer interrupts long work. Its zero value is ready, and it is safe for concurrent use.
type pacer struct {
	mu    sync.Mutex
	since time.Time // end of the last pause
}

// rest pauses if the last pause is longer ago than loadWork.
func (p *pacer) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.since) >= loadWork {
		<-time.After(loadPause)
		runtime.Gosched() // a timer wakes this goroutine before those that wait already
		p.since = time.Now()
	}
}
