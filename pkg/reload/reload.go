// Package reload keeps the last good value of something that is compiled from files, while the files change.
//
// A [Reloader] reads each [Source] and compiles the files. [New] makes it, [Reloader.Load] reads for the first time,
// [Reloader.Run] follows the changes, and [Reloader.Get] returns the value:
//
//	rules, err := reload.New(reload.Options[*Rules]{
//		Sources: []reload.Source{reload.Paths("/etc/rules")}, Compile: compile,
//	})
//	...
//	if err := rules.Load(ctx); err != nil { ... } // nothing works without rules
//	go rules.Run(ctx)
//	...
//	rules.Get().Decide(request)
//
// Only if reading and compiling succeed does it swap one pointer; a reader of the value pays one atomic load.
//
// # What counts as a change
//
// The Reloader compares content by its hash, not by file times. So a rename, a changed symbolic link, a checkout and
// a plain rewrite are all the same to it. The source's watch makes a reload quick; a slow poll makes it certain.
//
// New content must stay the same for a while ([Options].Settle) before it is compiled. So the Reloader does not take
// a file that is half written, or files of two releases. A writer that pauses for longer than Settle in the middle of
// a file should write another file and rename it.
//
// # What happened
//
// [Options].OnLoad receives an [Event] for each load, and [Reloader.Status] has the state: the hash of the live
// value, and why the newest content is not live.
//
// # Sources
//
// [Paths] is a source of files and directories, and [Files] the same with options. Any other [Source] will do.
package reload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// Defaults of Options.
const (
	// DefaultPoll bounds how long a change stays unseen that the watch does not see: a file of the same size and time as
	// the one before.
	DefaultPoll = 5 * time.Second
	// DefaultSettle is far longer than the microseconds between two writes of one program. An edit takes effect in less
	// than 300 ms, even right after another edit.
	DefaultSettle = 50 * time.Millisecond
)

// Reason is why the Reloader read its source.
type Reason string

// The reasons.
const (
	ReasonStart   Reason = "start"   // it is the first time
	ReasonWatch   Reason = "watch"   // the source's hint
	ReasonPoll    Reason = "poll"    // Options.Poll has passed
	ReasonRequest Reason = "request" // Load: a signal, an admin call
)

// Outcome is the result of a load.
type Outcome string

// The outcomes.
const (
	// Loaded: a new value is live.
	Loaded Outcome = "loaded"
	// Refused: the source could not be read, or its content not compiled. Event.Err says why. The live value stays. The
	// Reloader does not compile the same content again.
	Refused Outcome = "refused"
	// Slow: the load goes on, and has taken longer than 5 s. It is reported once.
	Slow Outcome = "slow"
)

// Event is what Options.OnLoad receives.
type Event struct {
	Outcome Outcome
	Reason  Reason
	Hash    string        // of the content; empty if it could not be read
	Files   int           // how many were read
	Took    time.Duration // from the first read to the outcome, including the time to settle
	Err     error         // nil unless Refused
}

// Options configure a Reloader.
type Options[T any] struct {
	// Sources are where the files come from: those of the first, then those of the next. Required. If one cannot be read,
	// nothing is.
	Sources []Source
	// Compile makes a value of all files, or returns what is wrong with them. Required. A panic counts as an error. It
	// must not keep the slice. It should return soon after ctx ends: when the Reloader stops, or when the files may have
	// changed again, which ends one load of two in succession at most.
	Compile func(ctx context.Context, files []File) (T, error)
	// Poll is how often Run reads the source without a hint; 0 means DefaultPoll.
	Poll time.Duration
	// Settle is how long content must stay the same before it is compiled; 0 means DefaultSettle.
	Settle time.Duration
	// OnLoad, if not nil, is called once for each Event, one at a time. It must not call Load.
	OnLoad func(Event)
}

// Status is a Reloader's state.
type Status struct {
	Hash     string    // of the live value; empty before the first
	LoadedAt time.Time // when the live value went live
	Files    int       // how many files the live value was compiled from
	Err      error     // why the newest content is not live; nil if it is
	ErrAt    time.Time // when Err happened; zero if there is none
	Loads    uint64    // how many values went live
	Refused  uint64    // how many loads were refused
	Loading  time.Time // since when new content is compiled; zero if none is
}

// Reloader holds the last good value. Its methods are safe for concurrent use.
type Reloader[T any] struct {
	o       Options[T]
	current atomic.Pointer[T]
	running atomic.Bool
	changed chan struct{} // hints; it has room for one
	turn    chan struct{} // a lock that a context can give up: a full channel is locked

	// Only with the turn:
	seen   string // the last reading that was judged, see reading.id; empty before the first
	outrun bool   // the last load ended because of newer content

	mu     sync.Mutex
	status Status
}

// New returns a Reloader. Its value is T's zero value until a Load succeeds.
func New[T any](o Options[T]) (*Reloader[T], error) {
	switch {
	case len(o.Sources) == 0:
		return nil, errors.New("reload: Options.Sources is empty")
	case o.Compile == nil:
		return nil, errors.New("reload: Options.Compile is nil")
	case o.Poll < 0:
		return nil, fmt.Errorf("reload: Options.Poll is %v, must not be negative", o.Poll)
	case o.Settle < 0:
		return nil, fmt.Errorf("reload: Options.Settle is %v, must not be negative", o.Settle)
	}
	o.Poll, o.Settle = cmp.Or(o.Poll, DefaultPoll), cmp.Or(o.Settle, DefaultSettle)
	if o.OnLoad == nil {
		o.OnLoad = func(Event) {}
	}
	return &Reloader[T]{o: o, changed: make(chan struct{}, 1), turn: make(chan struct{}, 1)}, nil
}

// Get returns the live value; before the first, T's zero value.
func (r *Reloader[T]) Get() T {
	if v := r.current.Load(); v != nil {
		return *v
	}
	var zero T
	return zero
}

// Status returns a copy of the state.
func (r *Reloader[T]) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// Load reads the source now. It returns nil if the source's content is live, the reason if it is not, or ctx's error.
//
// The first Load does not wait for the content to settle, since there is no live value yet. Later ones do, like Run, so
// they take Options.Settle longer. Content that was judged before is not compiled again: Load returns the same error
// without an Event.
func (r *Reloader[T]) Load(ctx context.Context) error {
	_, err := r.check(ctx, ReasonRequest)
	return err
}

// Run follows the source until ctx ends, and then returns nil; its goroutines have ended by then. Call Load first. Run
// returns an error only if it is running already.
func (r *Reloader[T]) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("reload: Run is running already")
	}
	defer r.running.Store(false)
	var watches sync.WaitGroup
	defer watches.Wait()
	for _, source := range r.o.Sources {
		watches.Go(func() { panics.Restart(ctx.Done(), "watch of rules", func() { source.Watch(ctx, r.changed) }) })
	}
	poll := time.NewTicker(r.o.Poll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
			if news, _ := r.check(ctx, ReasonWatch); !news {
				pause(ctx, r.o.Settle) // hints without a change must not cause reads without a pause
			}
		case <-poll.C:
			_, _ = r.check(ctx, ReasonPoll) // OnLoad hears of it
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (r *Reloader[T]) takeTurn(ctx context.Context) bool {
	select {
	case r.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (r *Reloader[T]) endTurn() { <-r.turn }

// check reads the source and judges its content. news is false if that content was judged before. The error says why
// the content is not live, or is ctx's.
func (r *Reloader[T]) check(ctx context.Context, reason Reason) (news bool, err error) {
	if !r.takeTurn(ctx) {
		return false, ctx.Err()
	}
	defer r.endTurn()
	start := time.Now()
	got := r.read(ctx)
	switch {
	case r.seen == "":
		reason = ReasonStart
	case got.id() != r.seen:
		got = r.settle(ctx, got)
	}
	if ctx.Err() != nil {
		Hint(r.changed) // a read may have used one up
		return false, ctx.Err()
	}
	if got.id() == r.seen {
		return false, r.Status().Err
	}
	e := r.judge(ctx, got, reason)
	if e.Outcome == "" { // it was given up
		Hint(r.changed)
		return false, e.Err
	}
	r.seen = got.id()
	e.Took = time.Since(start)
	r.record(e)
	return true, e.Err
}

// judge does everything that can fail, and then swaps the live value. There is no outcome if the load was given up.
func (r *Reloader[T]) judge(ctx context.Context, got reading, reason Reason) Event {
	e := Event{Outcome: Refused, Reason: reason, Hash: got.Hash, Files: len(got.Files), Err: got.err}
	if e.Err != nil {
		return e
	}
	r.setLoading(time.Now())
	defer r.setLoading(time.Time{})
	ctx, cancel := context.WithCancelCause(ctx)
	changed := r.changed
	if r.outrun { // not twice: else files that always change would never be loaded
		changed = nil
	}
	slow := e
	followed := make(chan struct{})
	panics.Go("watch of a load", func() {
		defer close(followed)
		r.followLoad(ctx, changed, cancel, slow)
	})
	var value T
	value, e.Err = r.compile(ctx, got.Files)
	r.outrun = errors.Is(context.Cause(ctx), errOutrun)
	switch {
	case e.Err == nil:
		r.current.Store(&value)
		e.Outcome = Loaded
	case ctx.Err() != nil:
		e.Outcome, e.Err = "", context.Cause(ctx)
	}
	cancel(nil)
	<-followed
	return e
}

// slowLoad is how long a load takes before it is reported.
const slowLoad = 5 * time.Second

var errOutrun = errors.New("the files may have changed while they were loaded; they are read again")

// followLoad ends a load when something has changed, and reports a slow one.
func (r *Reloader[T]) followLoad(
	ctx context.Context, changed <-chan struct{}, end context.CancelCauseFunc, e Event,
) {
	slow := time.NewTimer(slowLoad)
	defer slow.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			end(errOutrun)
		case <-slow.C:
			e.Outcome, e.Took = Slow, slowLoad
			r.o.OnLoad(e)
		}
	}
}

func (r *Reloader[T]) setLoading(since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Loading = since
}

// compile turns a panic into an error: bad files must not end a process that serves good ones.
func (r *Reloader[T]) compile(ctx context.Context, files []File) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("compiling panicked: %v", p)
		}
	}()
	return r.o.Compile(ctx, files)
}

// record updates the status, and calls OnLoad.
func (r *Reloader[T]) record(e Event) {
	now := time.Now()
	r.mu.Lock()
	s := &r.status
	s.Err, s.ErrAt = nil, time.Time{}
	if e.Outcome == Loaded {
		s.Hash, s.Files, s.LoadedAt = e.Hash, e.Files, now
		s.Loads++
	} else {
		s.Err, s.ErrAt = e.Err, now
		s.Refused++
	}
	r.mu.Unlock()
	r.o.OnLoad(e)
}

// patience is how many times Options.Settle content may keep changing before the Reloader reports it.
const patience = 50

// reading is the result of one read.
type reading struct {
	Snapshot
	err error
}

// id is the same for two readings with the same content, or the same error text.
func (g reading) id() string {
	if g.err != nil {
		return "error: " + g.err.Error()
	}
	return g.Hash
}

func (r *Reloader[T]) read(ctx context.Context) (got reading) {
	defer func() {
		if p := recover(); p != nil {
			got = reading{err: fmt.Errorf("reading panicked: %v", p)}
		}
	}()
	select {
	case <-r.changed: // what it is about is read now
	default:
	}
	var files []File
	var errs []error
	var snapshot Snapshot
	for _, source := range r.o.Sources {
		var err error
		snapshot, err = source.Read(ctx)
		files, errs = append(files, snapshot.Files...), append(errs, err)
	}
	err := errors.Join(errs...)
	if err == nil && len(errs) > 1 {
		snapshot = NewSnapshot(files)
	}
	return reading{snapshot, err}
}

// settle reads until two reads, Settle apart, return the same. Errors must settle, too: a file is often missing for a
// moment while it is replaced. After the deadline, settle returns an error if the content still differs.
func (r *Reloader[T]) settle(ctx context.Context, last reading) reading {
	deadline := time.Now().Add(patience * r.o.Settle)
	for {
		pause(ctx, r.o.Settle)
		if ctx.Err() != nil {
			return last
		}
		next := r.read(ctx)
		if next.id() == last.id() {
			return next
		}
		if !time.Now().Before(deadline) {
			return reading{err: fmt.Errorf("the files have kept changing for %v; waiting until they stay the same for %v",
				patience*r.o.Settle, r.o.Settle)}
		}
		last = next
	}
}
