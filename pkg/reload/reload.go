// Package reload compiles a value from files, follows changes of the files, and keeps the last good value.
//
// [New] returns a [Reloader], which reads each [Source] and compiles the files. [Reloader.Load] reads the files for the
// first time, [Reloader.Run] follows changes, and [Reloader.Get] returns the value:
//
//	rules, err := reload.New(reload.Options[*Rules]{
//		Sources: []reload.Source{reload.Paths("/etc/rules")}, Compile: compile,
//	})
//	...
//	if err := rules.Load(ctx); err != nil { ... } // there are no rules yet
//	go rules.Run(ctx)
//	...
//	rules.Get().Decide(request)
//
// The Reloader replaces the value only after reading and compiling have succeeded. Get costs one atomic load.
//
// # What counts as a change
//
// The Reloader compares the hash of the content, not file times. So it detects a rename, a changed symbolic link, a
// checkout and a rewritten file alike. The source's watch reports changes quickly. A slow poll finds the rest.
//
// New content must stay the same for a while ([Options].Settle) before it is compiled. So the Reloader does not compile
// half a file, or a mix of old and new files. A program that pauses for longer than Settle while it writes a file
// should write to a temporary file and rename that.
//
// # Events and status
//
// [Options].OnLoad receives an [Event] for each load. [Reloader.Status] returns the hash of the live value, and the
// reason for which the newest content is not live.
//
// # Sources
//
// [Paths] returns a source of files and directories. [Files] is that source with options.
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
	"github.com/weir-ratelimit/weir/internal/sleep"
)

// Defaults of Options.
const (
	// DefaultPoll bounds the delay of a change that the watch misses, such as a new file with the old size and time.
	DefaultPoll = 5 * time.Second
	// DefaultSettle is much longer than the time between two writes of a program. A change is live within 300 ms.
	DefaultSettle = 50 * time.Millisecond
)

// Reason is the reason for which the Reloader reads its sources.
type Reason string

// The reasons.
const (
	ReasonStart   Reason = "start"   // the first load
	ReasonWatch   Reason = "watch"   // a hint of a source
	ReasonPoll    Reason = "poll"    // Options.Poll has passed
	ReasonRequest Reason = "request" // a call of Load, for example after a signal or an admin call
)

// Outcome is the result of a load.
type Outcome string

// The outcomes.
const (
	// Loaded means that a new value is live.
	Loaded Outcome = "loaded"
	// Refused means that reading or compiling failed with Event.Err. The old value stays live.
	Refused Outcome = "refused"
	// Slow means that a load has taken 5 s and is still going on. It is reported once per load.
	Slow Outcome = "slow"
)

// Event describes a load to Options.OnLoad.
type Event struct {
	Outcome Outcome
	Reason  Reason
	Hash    string        // hash of the content; empty if reading failed
	Files   int           // number of files that were read
	Took    time.Duration // time from the first read to the outcome, including the time to settle
	Err     error         // nil unless the Outcome is Refused
}

// Options configure a Reloader.
type Options[T any] struct {
	// Sources are the sources of the files, in order. At least one is required. If one source fails, the load fails.
	Sources []Source
	// Compile compiles all files to a value, or returns an error. It is required. A panic counts as an error. Compile must
	// not retain the slice. ctx ends when the Reloader stops or the files may have changed again; Compile should then
	// return soon. Changes never end two loads in succession.
	Compile func(ctx context.Context, files []File) (T, error)
	// Poll is the interval at which Run reads the sources without a hint; 0 means DefaultPoll.
	Poll time.Duration
	// Settle is the time for which content must stay the same before it is compiled; 0 means DefaultSettle.
	Settle time.Duration
	// OnLoad, if not nil, is called for each Event, never concurrently. It must not call Load.
	OnLoad func(Event)
}

// Status is a Reloader's state.
type Status struct {
	Hash     string    // hash of the live value's content; empty before the first value
	LoadedAt time.Time // time at which the live value went live
	Files    int       // number of files of the live value
	Err      error     // reason for which the newest content is not live; nil if it is live
	ErrAt    time.Time // time of Err; zero if Err is nil
	Loads    uint64    // number of values that went live
	Refused  uint64    // number of refused loads
	Loading  time.Time // time since which Compile runs; zero if it does not run
}

// Reloader holds the last good value. Its methods are safe for concurrent use.
type Reloader[T any] struct {
	o       Options[T]
	current atomic.Pointer[T]
	running atomic.Bool
	changed chan struct{} // hints, with a capacity of 1
	turn    chan struct{} // a lock, held while the channel is full; unlike a mutex, waiting for it can end with a context

	// Guarded by turn:
	seen   string // id of the last reading that was judged; empty before the first
	outrun bool   // newer content ended the last load

	mu     sync.Mutex
	status Status
}

// New returns a Reloader, or an error if o is invalid. Its value is T's zero value until a load succeeds.
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

// Get returns the live value, or T's zero value before the first load succeeds.
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

// Load reads the sources now. It returns nil if their content is live, else the reason, or ctx's error.
//
// The first Load does not wait until the content settles, because there is no live value yet. Later loads take
// Options.Settle longer if the content has changed. If the content is the same as before, Load does not compile it
// again, and returns the same result without an Event.
func (r *Reloader[T]) Load(ctx context.Context) error {
	_, err := r.check(ctx, ReasonRequest)
	return err
}

// Run follows changes of the sources until ctx ends. It returns nil after its goroutines have ended. Call Load first.
// Run returns an error only if it is running already.
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
				_ = sleep.For(ctx, r.o.Settle) // so that frequent hints without a change do not cause continuous reads
			}
		case <-poll.C:
			_, _ = r.check(ctx, ReasonPoll) // OnLoad receives the result
		}
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

// check reads the sources and judges new content. news reports whether it has judged new content. The error is the
// reason for which the content is not live, or ctx's error.
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
		Hint(r.changed) // the read may have consumed a hint
		return false, ctx.Err()
	}
	if got.id() == r.seen {
		return false, r.Status().Err
	}
	e := r.judge(ctx, got, reason)
	if e.Outcome == "" { // the load was given up
		Hint(r.changed)
		return false, e.Err
	}
	r.seen = got.id()
	e.Took = time.Since(start)
	r.record(e)
	return true, e.Err
}

// judge compiles the content, and then replaces the live value. Event.Outcome is "" if the load was given up.
func (r *Reloader[T]) judge(ctx context.Context, got reading, reason Reason) Event {
	e := Event{Outcome: Refused, Reason: reason, Hash: got.Hash, Files: len(got.Files), Err: got.err}
	if e.Err != nil {
		return e
	}
	r.setLoading(time.Now())
	defer r.setLoading(time.Time{})
	ctx, cancel := context.WithCancelCause(ctx)
	changed := r.changed
	if r.outrun { // do not end two loads in succession: files that always change would never be loaded
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

// slowLoad is the time after which followLoad reports a load as slow.
const slowLoad = 5 * time.Second

var errOutrun = errors.New("the files may have changed while they were loaded; they are read again")

// followLoad ends the load on a hint, and reports a slow load.
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

// compile calls Options.Compile, and returns a panic as an error, so that bad files do not end the process.
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

// patience is the time for which content may keep changing before settle returns an error, in multiples of Settle.
const patience = 50

// reading is the result of reading all sources once.
type reading struct {
	Snapshot
	err error
}

// id identifies the content of the reading, or its error by the error's text.
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
	case <-r.changed: // this read includes all changes that were hinted at before
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

// settle reads every Options.Settle until two successive readings are equal. An error must settle, too, because a file
// is often missing for a moment while it is replaced. If the content changes for too long, settle returns an error.
func (r *Reloader[T]) settle(ctx context.Context, last reading) reading {
	deadline := time.Now().Add(patience * r.o.Settle)
	for {
		if sleep.For(ctx, r.o.Settle) != nil {
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
