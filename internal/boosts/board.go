package boosts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

const (
	// longestNap bounds the sleep until the next boost ends: clocks are set.
	longestNap = 10 * time.Second
	// firstLook bounds the read at the start of the process.
	firstLook = 500 * time.Millisecond
	// readPause is the least time between two reads that hints cause: whoever may publish in Redis can send any number.
	readPause = 200 * time.Millisecond
	// maxLogged is the most boosts that begin, or end, at once and have a line each in the log.
	maxLogged = 20
)

// Store keeps boosts for several processes.
type Store interface {
	// Read returns the boosts and their revision. same reports that it is the known one, "" for none; then nothing else is
	// returned.
	Read(ctx context.Context, known string) (all []adminapi.Boost, revision string, same bool, err error)
	// Change replaces the boosts by what change makes of them. It calls it once more if others change them meanwhile.
	Change(ctx context.Context, change func([]adminapi.Boost) ([]adminapi.Boost, error)) error
	// Watch sends to hints when it is time to read, until ctx is done.
	Watch(ctx context.Context, hints chan<- struct{})
}

// Options are a Board's parts.
type Options struct {
	// Store is nil for boosts of this process alone, which end with it.
	Store Store
	// Changed is called after other limits than before are in force.
	Changed func()
	// Reachable says whether the store's server is. If not, that has been logged, and boosts that cannot be read are not
	// worth a warning of their own. Nil: it is not known.
	Reachable func(ctx context.Context) bool
	// Log has a line for each boost that begins or ends here.
	Log *slog.Logger
}

// Board is the boosts that are known here, and what they make of the rules. It is safe for concurrent use.
type Board struct {
	o      Options
	limits atomic.Pointer[decide.Boosts]
	wake   chan struct{} // Run looks again when the next boost ends

	reading sync.Mutex // by who reads the store: what was read last is what is kept

	mu       sync.Mutex
	all      []adminapi.Boost // oldest first
	status   []adminapi.BoostStatus
	revision string
	sets     []*descriptors.Set // live, then those that are about to be
	warned   bool               // the log says that the store cannot be read; guarded by reading
	away     error              // why the store could not be read at the last look
}

// New makes a board without boosts.
func New(o Options) *Board { return &Board{o: o, wake: make(chan struct{}, 1)} }

// Limits is what stands for limits of the rules: one atomic load. Nil if nothing does.
func (b *Board) Limits() *decide.Boosts { return b.limits.Load() }

// Prepare makes the boosts ready for rules that are about to go live, beside those that are.
func (b *Board) Prepare(set *descriptors.Set) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sets = append(slices.Clone(b.sets), set)
	b.rebuild()
}

// Live says which rules are live: the others are forgotten.
func (b *Board) Live(set *descriptors.Set) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sets = []*descriptors.Set{set}
	b.rebuild()
}

func (b *Board) live() *descriptors.Set {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.sets) == 0 {
		return nil
	}
	return b.sets[0]
}

// rebuild makes the limits again. b is locked.
func (b *Board) rebuild() {
	limits, status := build(b.sets, b.all)
	b.limits.Store(limits)
	b.status = status
}

// List is all boosts that have not ended, oldest first.
func (b *Board) List() []adminapi.BoostStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	return slices.DeleteFunc(slices.Clone(b.status), func(s adminapi.BoostStatus) bool { return !s.ExpiresAt.After(now) })
}

// InForce is how many boosts are in force here. reachable says whether the store could be read at the last look.
func (b *Board) InForce() (n int, reachable bool) {
	for _, s := range b.List() {
		if s.InForce {
			n++
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return n, b.away == nil
}

// Away is why the store could not be read at the last look.
func (b *Board) Away() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.away
}

// Of is the boost that is in force for a limit's counter, nil if none is, and what it makes of the limit.
func (b *Board) Of(l *descriptors.Limit, key string) (*adminapi.Boost, *descriptors.Limit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	by := l
	if limits := b.limits.Load(); limits != nil {
		by = limits.Limit(l, key)
	}
	if by == l {
		return nil, l
	}
	var of *adminapi.Boost
	for i := range b.all { // the newest goes before, and one of the counter before one of the rule
		if a := &b.all[i]; a.Domain == l.Rule.Domain && a.Rule == l.Rule.Path {
			if slices.Contains(a.Keys, key) || len(a.Keys) == 0 && (of == nil || len(of.Keys) == 0) {
				of = a
			}
		}
	}
	if of == nil {
		return nil, l
	}
	shown := *of
	return &shown, by
}

// Add makes a boost. Its error is an *InvalidError, or wraps ErrNotFound, ErrFull or, where the store does not answer,
// limiter.ErrUnavailable.
func (b *Board) Add(ctx context.Context, in *adminapi.BoostRequest) (*adminapi.BoostStatus, error) {
	now := time.Now()
	boost, err := newBoost(in, b.live(), now)
	if err != nil {
		return nil, err
	}
	err = b.change(ctx, func(all []adminapi.Boost) ([]adminapi.Boost, error) {
		all = unexpired(all, now)
		of := 0
		for i := range all {
			if all[i].Author == in.Author {
				of++
			}
		}
		if len(all) >= Max || of >= MaxOfAuthor {
			return nil, ErrFull
		}
		return append(all, *boost), nil
	})
	if err != nil {
		return nil, err
	}
	for _, s := range b.List() {
		if s.ID == boost.ID {
			return &s, nil
		}
	}
	return &adminapi.BoostStatus{Boost: *boost}, nil // it is made, and read again soon
}

// Remove ends a boost. Its error is as of Add.
func (b *Board) Remove(ctx context.Context, id string) (*adminapi.Boost, error) {
	var removed adminapi.Boost
	err := b.change(ctx, func(all []adminapi.Boost) ([]adminapi.Boost, error) {
		all = unexpired(all, time.Now())
		i := slices.IndexFunc(all, func(a adminapi.Boost) bool { return a.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("there is no boost %.80q, or no longer (%w); weir boost list shows them", id, ErrNotFound)
		}
		removed = all[i]
		return slices.Delete(all, i, i+1), nil
	})
	return &removed, err
}

// change does it in the store, if there is one, and then here.
func (b *Board) change(ctx context.Context, change func([]adminapi.Boost) ([]adminapi.Boost, error)) error {
	if b.o.Store == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		all, err := change(slices.Clone(b.all))
		if err == nil {
			b.take(ctx, all)
		}
		return err
	}
	if err := b.o.Store.Change(ctx, change); err != nil {
		return err
	}
	b.read(ctx)
	return nil
}

// read takes what the store has. While it is away, what is known stays.
func (b *Board) read(ctx context.Context) {
	b.reading.Lock()
	defer b.reading.Unlock()
	b.mu.Lock()
	known := b.revision
	b.mu.Unlock()
	all, revision, same, err := b.o.Store.Read(ctx, known)
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return
	}
	warn := err != nil && !b.warned && (b.o.Reachable == nil || b.o.Reachable(ctx)) // only a read changes warned
	b.mu.Lock()
	defer b.mu.Unlock()
	if warn {
		b.warned = true
		b.o.Log.LogAttrs(ctx, slog.LevelWarn, "boosts cannot be read, those that are known stay until they end",
			slog.String("error", err.Error()))
	} else if err == nil && b.warned {
		b.warned = false
		b.o.Log.LogAttrs(ctx, slog.LevelInfo, "boosts can be read again")
	}
	if b.away = err; err == nil && !same {
		b.revision = revision
		b.take(ctx, all)
	}
}

// take puts other boosts in force. b is locked.
func (b *Board) take(ctx context.Context, all []adminapi.Boost) {
	now := time.Now()
	before := b.all
	b.all = sorted(unexpired(all, now))
	b.logAdded(ctx, before, b.all, "boost begins")
	b.logAdded(ctx, b.all, before, "boost ends")
	b.rebuild()
	b.o.Changed()
	reload.Hint(b.wake)
}

// logAdded logs the boosts that are among the second and not the first.
func (b *Board) logAdded(ctx context.Context, without, with []adminapi.Boost, msg string) {
	known := make(map[string]bool, len(without))
	for i := range without {
		known[without[i].ID] = true
	}
	added := 0
	for i := range with {
		if known[with[i].ID] {
			continue
		}
		if added++; added <= maxLogged {
			b.o.Log.LogAttrs(ctx, slog.LevelInfo, msg, Attrs(&with[i])...) //nolint:sloglint // one of two constants
		}
	}
	if added > maxLogged {
		b.o.Log.LogAttrs(ctx, slog.LevelInfo, msg+": not all are shown", //nolint:sloglint // one of two constants
			slog.Int("boosts", added), slog.Int("shown", maxLogged))
	}
}

// Attrs are for logs: without the counters' keys, which have values of requests.
func Attrs(b *adminapi.Boost) []slog.Attr {
	return []slog.Attr{
		slog.String("boost", b.ID), slog.String("domain", b.Domain), slog.String("rule", b.Rule),
		slog.Int("keys", len(b.Keys)),
		slog.Float64("factor", b.Factor), slog.String("reason", b.Reason), slog.String("author", b.Author),
		slog.Time("expires_at", b.ExpiresAt),
	}
}

// First reads the store before the process serves, if it answers soon.
func (b *Board) First(ctx context.Context) {
	if b.o.Store == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	b.read(ctx)
}

// Run follows the store, and ends boosts when their time is over, until ctx is done.
func (b *Board) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel() // also if Run panics
	hints := make(chan struct{}, 1)
	if b.o.Store != nil {
		wait.Go(func() {
			panics.Restart(ctx.Done(), "watch of boosts", func() { b.o.Store.Watch(ctx, hints) })
		})
	}
	nap := time.NewTimer(b.next())
	defer nap.Stop()
	heard := hints // nil during a pause
	var pause <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-heard:
			b.read(ctx)
			heard, pause = nil, time.After(readPause)
		case <-pause:
			heard = hints
		case <-nap.C:
			b.expire(ctx)
		case <-b.wake:
		}
		nap.Reset(b.next())
	}
}

// next is how long to sleep until a boost ends.
func (b *Board) next() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	nap := longestNap
	for i := range b.all {
		nap = min(nap, time.Until(b.all[i].ExpiresAt))
	}
	return max(nap, 0)
}

// expire ends what is over.
func (b *Board) expire(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(unexpired(b.all, time.Now())) < len(b.all) {
		b.take(ctx, b.all)
	}
}
