// Package rules keeps the compiled rules of a process up to date: it reads rule files and what is published in Redis,
// compiles them at a pace that requests do not notice, and swaps the set in force.
package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Observer counts what becomes of loads. Its methods are called one at a time.
type Observer interface {
	// RulesCompiled is called before a set goes live.
	RulesCompiled(set *descriptors.Set)
	// RulesLoaded is called when rules went live; hash is of their files.
	RulesLoaded(hash string)
	// RulesRestored is called when the files are those of the rules in force again after a refusal.
	RulesRestored()
	// RulesRefused is called when new files were refused.
	RulesRefused()
}

// Options are where the rules come from, how they are compiled, and who is notified.
type Options struct {
	// Paths are rule files and directories of them.
	Paths []string
	// EveryFile reads every regular file of the directories, and lets them be missing at the start, or empty. Prefix, if
	// not empty, is which of their files are read: see reload.Files.
	EveryFile bool
	Prefix    string
	// MaxSize is how many bytes the files may have together; 0 means reload.DefaultMaxSize.
	MaxSize int64
	// Published, if not nil, are the rule sets in Redis. The caller closes their connections.
	Published *Published
	// XDS, if not nil, is the rules of a control plane. Load starts it, the caller closes it.
	XDS *xds.Source
	// Process is what rule files leave to the process; its Rest is set here.
	Process descriptors.Process
	// Stores are the names that limits may have as their store.
	Stores []string
	// AllowEmpty lets Load succeed although the rules cannot be loaded: Run goes on trying.
	AllowEmpty bool
	// Poll is how often the sources are read without a hint. Settle is how long a change must stay the same before it is
	// loaded.
	Poll, Settle time.Duration
	// HoldGC, if not nil, puts garbage collections off until release is called, for the time of a load.
	HoldGC func() (release func())

	// Live is called when a set has gone live.
	Live     func()
	Observer Observer
	Log      *slog.Logger
}

// Rules are the rules of a process: the set in force and the state of the last load. Its methods are safe for
// concurrent use.
type Rules struct {
	o         Options
	reloader  *reload.Reloader[compiled]
	published *Follower // nil without rules in Redis
	pacer     pacer
	releaseGC func()                          // ends the hold of the load in progress
	notReadOn atomic.Bool                     // the search for files that are not read is in progress
	life      atomic.Pointer[context.Context] // of Load or Run: loads in progress end with it
	logged    *descriptors.Set                // of the last line about a load; only logLowered uses it
}

// compiled is the result of one load.
type compiled struct {
	set       *descriptors.Set // nil before the first good load
	files     []string
	published PublishedInfo // of version 0: none
}

// Load loads the rules for the first time, which must succeed unless they may be empty.
func Load(ctx context.Context, o Options) (*Rules, error) {
	if o.HoldGC == nil {
		o.HoldGC = func() func() { return func() {} }
	}
	r := &Rules{o: o, releaseGC: func() {}}
	r.life.Store(&ctx)
	r.o.Process.Rest = r.rest
	var err error
	r.reloader, err = reload.New(reload.Options[compiled]{
		Sources: r.sources(), Compile: r.compile, Poll: o.Poll, Settle: o.Settle, OnLoad: r.loaded,
	})
	if err != nil {
		return nil, err
	}
	if o.XDS != nil {
		o.XDS.Start(ctx, r.o.Process, o.AllowEmpty)
	}
	if err := r.reloader.Load(ctx); err != nil && !o.AllowEmpty {
		return nil, fmt.Errorf("--rules: the rules cannot be loaded:\n%w", err)
	}
	return r, nil
}

// sources are where the rules come from: files, then what is published, then what a control plane has sent.
func (r *Rules) sources() (sources []reload.Source) {
	if len(r.o.Paths) > 0 {
		sources = append(sources, SourceFor(r.o.Process, r.files()))
	}
	if r.o.Published != nil {
		r.published = r.o.Published.Follow(r.logReachable)
		sources = append(sources, r.published)
	}
	if r.o.XDS != nil {
		sources = append(sources, r.o.XDS)
	}
	return sources
}

// files are the files at the paths. A directory that goes away while its rules are in force is an error, so that they
// stay.
func (r *Rules) files() reload.Files {
	files := reload.Files{Paths: r.o.Paths, EveryFile: r.o.EveryFile, Prefix: r.o.Prefix, MaxSize: r.o.MaxSize}
	if r.o.EveryFile {
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
	if unknown := set.UnknownStores(r.o.Stores); unknown != nil {
		return compiled{}, unknown
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.Name
	}
	r.o.Observer.RulesCompiled(set) // the swap follows at once, and cannot fail
	live := compiled{set: set, files: names}
	if r.published != nil {
		live.published, _ = r.published.Last() // the set that was just read: reading and compiling take turns
	}
	return live, nil
}

// build compiles rule files, and then what came by xDS. That is lenient, as nobody can mend it here; the files are so
// only if the process is.
func (r *Rules) build(ctx context.Context, files []reload.File) (*descriptors.Set, error) {
	process := r.o.Process
	process.Rest = func() error { return cmp.Or(context.Cause(ctx), r.rest()) }
	process.Lenient = process.Lenient || r.o.XDS != nil
	own := Descriptors(slices.DeleteFunc(slices.Clone(files), xds.IsFile))
	b := descriptors.NewBuilder(process)
	rulefile.Add(b, own)
	for _, f := range files {
		if xds.IsFile(f) {
			xds.Add(b, f)
		}
	}
	set, err := b.Build()
	if err == nil && !r.o.Process.Lenient && slices.ContainsFunc(set.Warnings(), isToleratedInFile) {
		if _, strict := rulefile.CompileFor(r.o.Process, own); strict != nil {
			return nil, strict
		}
	}
	return set, err
}

// isToleratedInFile reports that the warning is of a file, and an error unless the process is lenient.
func isToleratedInFile(e *descriptors.Error) bool {
	return e.Code == descriptors.WarnTolerated && !strings.HasPrefix(e.File, xds.Scheme)
}

// loaded reports the end of a load. The rules that it replaced are garbage then.
func (r *Rules) loaded(e reload.Event) {
	if e.Outcome == reload.Slow {
		r.logLoad(e)
		return
	}
	defer func() { r.releaseGC() }()
	switch e.Outcome {
	case reload.Loaded:
		r.o.Observer.RulesLoaded(e.Hash)
		r.o.Live()
	case reload.Restored:
		r.o.Observer.RulesRestored()
	case reload.Refused:
		r.o.Observer.RulesRefused()
	case reload.Unwatched, reload.Slow:
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

// hungFile is the file whose read hangs, if the error is about one.
func hungFile(err error) (hung *fileread.HungError) {
	errors.As(err, &hung)
	return hung
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
	if r.o.XDS == nil {
		return nil
	}
	return r.o.XDS.Status()
}

// A load works for loadWork, then pauses for loadPause, so that requests wait less than 10 ms for a CPU.
const (
	loadWork  = 2 * time.Millisecond
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
		p.since = time.Now()
	}
}
