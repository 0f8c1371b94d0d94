// Package reload keeps "the last good value" of something that is compiled from files, while the files change.
//
// A Reloader reads a Source, compiles what it read, and only when all of that has succeeded swaps one pointer;
// readers pay one atomic load. What counts is content: two reads with the same hash are the same, however the
// files came to be, so a rename, a symbolic link that is swapped, a checkout and a plain rewrite need no cases of
// their own. The source's watch is a hint that makes it quick, a slow poll is the truth that makes it certain.
//
// Content that differs must stay the same for a while (Options.Settle) before it is compiled, so that a file in
// the middle of being written, or two files of two releases, are not taken. No reader can know more than that:
// a writer that pauses for longer than Settle in the middle of a file should write beside it and rename.
package reload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of Options.
const (
	// DefaultPoll bounds how long a change stays unseen where nothing notifies: NFS, a mount over the
	// directory, no watches left. Reading faster would gain nothing there, for NFS clients keep what they
	// know of a file for 3 s and longer, and a kubelet takes up to a minute to bring a ConfigMap.
	DefaultPoll = 5 * time.Second
	// DefaultSettle is far above the microseconds between two writes of one program, and leaves edit to
	// effect at well under 300 ms even if the edit comes right after another.
	DefaultSettle = 50 * time.Millisecond
)

// patience is how many Settles a source that never keeps still is given before that is reported.
const patience = 50

// File is one file's content. Name is the path as the user would write it, for messages.
type File struct {
	Name string
	Data []byte
	// Included says that it was not found but named by another file: see Including.
	Included bool
}

// Source is where files come from.
type Source interface {
	// Read reads all of it. Its error names the path that could not be read.
	Read(ctx context.Context) (Snapshot, error)
	// Watch sends on changed, without ever blocking, whenever a Read may give something new: once as soon
	// as it watches, then after each change. It is a hint: it may send for nothing and it may miss a change.
	// It returns nil when ctx ends, and an error if it cannot watch, or no longer.
	Watch(ctx context.Context, changed chan<- struct{}) error
}

// Reason says what made the Reloader look at its source.
type Reason string

// The reasons.
const (
	ReasonStart   Reason = "start"   // the first look
	ReasonWatch   Reason = "watch"   // the source's hint
	ReasonPoll    Reason = "poll"    // Options.Poll has passed
	ReasonRequest Reason = "request" // Load: a signal, an admin call
)

// Outcome says what came of it.
type Outcome string

// The outcomes.
const (
	// Loaded: a new value is in force.
	Loaded Outcome = "loaded"
	// Refused: the source could not be read or its content not compiled, Err says why. The value in force
	// stays, and the same content is not tried again.
	Refused Outcome = "refused"
	// Restored: after a refusal the content is again that of the value in force; nothing was swapped.
	Restored Outcome = "restored"
	// Unwatched: the source cannot be watched, Err says why. Nothing is lost: the poll goes on.
	Unwatched Outcome = "unwatched"
)

// Event is told to Options.OnLoad.
type Event struct {
	Outcome Outcome
	Reason  Reason
	Hash    string        // of the content; empty if it could not be read
	Files   int           // how many were read
	Took    time.Duration // from the first read to the outcome, with the wait for the content to settle
	Err     error         // nil unless Refused or Unwatched
}

// Options are what a Reloader is made of.
type Options[T any] struct {
	// Source is where the files come from. Required.
	Source Source
	// Compile makes a value of all files, or says what is wrong with them. Required. A panic in it is an
	// error like any other. It must not keep the slice.
	Compile func(files []File) (T, error)
	// Poll is how often Run reads the source without a hint; 0 is DefaultPoll.
	Poll time.Duration
	// Settle is how long content must stay the same before it is compiled; 0 is DefaultSettle.
	Settle time.Duration
	// OnLoad, if not nil, is called once for each Event, one at a time. It must not call Load.
	OnLoad func(Event)
}

// Status is a Reloader's state for people.
type Status struct {
	Hash     string    // of the value in force; empty before the first
	LoadedAt time.Time // when it came into force
	Files    int       // how many files it was compiled from
	Err      error     // why the newest content is not in force; nil if it is
	ErrAt    time.Time // when Err was found; zero if it is nil
	Loads    uint64    // values that came into force
	Refused  uint64    // contents that were refused
}

// Reloader holds the last good value. Its methods are safe for concurrent use.
type Reloader[T any] struct {
	o       Options[T]
	current atomic.Pointer[T]
	running atomic.Bool
	changed chan struct{} // hints; one is as good as many
	turn    chan struct{} // whoever has put the one token in may read, compile and swap

	// With the turn only.
	seen     string // what was judged last, see reading.id; empty before the first
	watchErr string // the Unwatched that was told last

	mu     sync.Mutex
	status Status
}

// New makes a Reloader, which holds T's zero value until a Load succeeds.
func New[T any](o Options[T]) (*Reloader[T], error) {
	switch {
	case o.Source == nil:
		return nil, errors.New("reload: Options.Source is nil")
	case o.Compile == nil:
		return nil, errors.New("reload: Options.Compile is nil")
	case o.Poll < 0:
		return nil, fmt.Errorf("reload: Options.Poll is %v, must not be negative", o.Poll)
	case o.Settle < 0:
		return nil, fmt.Errorf("reload: Options.Settle is %v, must not be negative", o.Settle)
	}
	if o.Poll == 0 {
		o.Poll = DefaultPoll
	}
	if o.Settle == 0 {
		o.Settle = DefaultSettle
	}
	if o.OnLoad == nil {
		o.OnLoad = func(Event) {}
	}
	return &Reloader[T]{o: o, changed: make(chan struct{}, 1), turn: make(chan struct{}, 1)}, nil
}

// Get returns the value in force: T's zero value before the first.
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

// Load looks at the source now and returns nil if what it holds is in force, the reason if not, or ctx's error.
//
// The first look reads once, for nothing good is in force that could be protected. Every later one is as careful
// as Run's: new content must settle before it is compiled, so Load takes Options.Settle longer than the reading.
// Content that was judged already is not compiled again: Load returns the same verdict without an Event.
func (r *Reloader[T]) Load(ctx context.Context) error {
	_, err := r.check(ctx, ReasonRequest)
	return err
}

// Run follows the source until ctx ends, then returns nil; all its goroutines have ended by then. Call Load
// first. Its only error is that it is running already.
func (r *Reloader[T]) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("reload: Run is running already")
	}
	defer r.running.Store(false)
	poll := time.NewTicker(r.o.Poll)
	defer poll.Stop()
	stop := r.watch(ctx)
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
			r.pause(ctx, r.o.Settle/10) // an edit is often several steps; a read between them would settle in vain
			if news, _ := r.check(ctx, ReasonWatch); !news {
				r.pause(ctx, r.o.Settle) // hints for nothing must not become a loop of reads
			}
		case <-poll.C:
			if news, _ := r.check(ctx, ReasonPoll); news {
				// The watch has missed it: what it watches has been replaced, or it has ended.
				stop()
				stop = r.watch(ctx)
			}
		}
	}
}

// watch runs the source's Watch until stop is called, which waits for its end.
func (r *Reloader[T]) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.o.Source.Watch(ctx, r.changed); err != nil && ctx.Err() == nil {
			r.unwatched(ctx, err)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// unwatched tells that there is no watch, once for each text.
func (r *Reloader[T]) unwatched(ctx context.Context, err error) {
	if !r.takeTurn(ctx) {
		return
	}
	defer r.endTurn()
	if r.watchErr == err.Error() {
		return
	}
	r.watchErr = err.Error()
	r.o.OnLoad(Event{Outcome: Unwatched, Reason: ReasonWatch, Err: err})
}

func (r *Reloader[T]) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
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

// check reads the source and, if it holds something that has not been judged, judges it: that is news. The error
// is the verdict on what the source holds, or ctx's.
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
		r.hint() // settle may have used one up
		return false, ctx.Err()
	}
	if got.id() == r.seen {
		return false, r.Status().Err
	}
	r.seen = got.id()
	e := r.judge(got)
	e.Reason, e.Took = reason, time.Since(start)
	r.record(e)
	return true, e.Err
}

// reading is what one read gave.
type reading struct {
	Snapshot
	err error
}

// id is what makes two readings the same: their content, or the text of their errors.
func (g reading) id() string {
	if g.err != nil {
		return "error: " + g.err.Error()
	}
	return g.Hash
}

func (r *Reloader[T]) read(ctx context.Context) reading {
	snapshot, err := r.o.Source.Read(ctx)
	if err == nil && snapshot.Hash == "" {
		err = errors.New("the source gave no hash; it must make its snapshots with NewSnapshot")
	}
	return reading{snapshot, err}
}

// settle reads until two reads that lie Settle apart, with no hint in between, give the same as each other, and
// returns that. An error must settle too: a file is often gone for a moment while it is replaced. When its
// patience has run out, hints no longer count (they may come for nothing) but content that differs still does.
func (r *Reloader[T]) settle(ctx context.Context, last reading) reading {
	deadline := time.Now().Add(patience * r.o.Settle)
	for {
		r.quiet(ctx, deadline)
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

// quiet returns when there has been no hint for Settle, and soon after the deadline even if there has.
func (r *Reloader[T]) quiet(ctx context.Context, deadline time.Time) {
	timer := time.NewTimer(r.o.Settle)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-r.changed:
			if time.Now().Before(deadline) {
				timer.Reset(r.o.Settle)
			}
		}
	}
}

func (r *Reloader[T]) hint() { hint(r.changed) }

// hint sends unless a hint is waiting already.
func hint(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// judge does all that can fail, then swaps.
func (r *Reloader[T]) judge(got reading) Event {
	e := Event{Outcome: Refused, Hash: got.Hash, Files: len(got.Files), Err: got.err}
	if e.Err != nil {
		return e
	}
	if got.Hash == r.Status().Hash {
		e.Outcome = Restored
		return e
	}
	var value T
	if value, e.Err = r.compile(got.Files); e.Err == nil {
		r.current.Store(&value)
		e.Outcome = Loaded
	}
	return e
}

// compile makes a panic an error: bad files must not end a process that serves good ones.
func (r *Reloader[T]) compile(files []File) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("compiling panicked: %v", p)
		}
	}()
	return r.o.Compile(files)
}

// record brings the status up to date, then tells the hook.
func (r *Reloader[T]) record(e Event) {
	now := time.Now()
	r.mu.Lock()
	s := &r.status
	s.Err, s.ErrAt = nil, time.Time{}
	switch e.Outcome {
	case Loaded:
		s.Hash, s.Files, s.LoadedAt = e.Hash, e.Files, now
		s.Loads++
	case Refused:
		s.Err, s.ErrAt = e.Err, now
		s.Refused++
	default: // Restored: the error is gone, and that is all
	}
	r.mu.Unlock()
	r.o.OnLoad(e)
}
