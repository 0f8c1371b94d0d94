package reload_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/weir-ratelimit/weir/pkg/reload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a Source in memory. If next is not empty, a read first replaces content with the first of next.
type memory struct {
	mu      sync.Mutex
	content string
	err     error
	next    []string
	reads   int
	changed chan<- struct{}
}

func (m *memory) Read(context.Context) (reload.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	if len(m.next) > 0 {
		m.content, m.next = m.next[0], m.next[1:]
	}
	if m.err != nil {
		return reload.Snapshot{}, m.err
	}
	return reload.NewSnapshot([]reload.File{{Name: "f", Data: []byte(m.content)}}), nil
}

func (m *memory) Watch(ctx context.Context, changed chan<- struct{}) {
	m.mu.Lock()
	m.changed = changed
	m.mu.Unlock()
	m.hint()
	<-ctx.Done()
}

func (m *memory) hint() {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// set changes the content without a hint.
func (m *memory) set(content string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.content, m.err = content, err
}

func (m *memory) count() (reads int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads
}

// compile joins the files to one string, and returns an error for "bad". It takes 20 s for "slow".
func compile(ctx context.Context, files []reload.File) (string, error) {
	var all []string
	for _, f := range files {
		switch s := string(f.Data); {
		case strings.Contains(s, "bad"):
			return "", fmt.Errorf("%s: %q is bad", f.Name, s)
		case strings.Contains(s, "panic"):
			panic(s)
		case strings.Contains(s, "slow"):
			select {
			case <-ctx.Done():
				return "", errors.New("given up")
			case <-time.After(20 * time.Second):
			}
			fallthrough
		default:
			all = append(all, s)
		}
	}
	return strings.Join(all, "+"), nil
}

// log records events as text.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) add(e reload.Event) {
	line := fmt.Sprintf("%s %s", e.Reason, e.Outcome)
	if e.Err != nil {
		line += ": " + e.Err.Error()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

// take returns the lines since the last take.
func (l *log) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

func (l *log) want(t *testing.T, lines ...string) {
	t.Helper()
	if diff := cmp.Diff(lines, l.take()); diff != "" {
		t.Fatalf("events (-want +got):\n%s", diff)
	}
}

// inMemory returns a Reloader of src with a Poll of 5 s and a Settle of 50 ms, for a synctest bubble.
func inMemory(t *testing.T, src *memory) (*reload.Reloader[string], *log) {
	t.Helper()
	var l log
	r, err := reload.New(reload.Options[string]{Sources: []reload.Source{src}, Compile: compile, OnLoad: l.add})
	must(t, err)
	return r, &l
}

// run runs r until the test ends.
func run(t *testing.T, r *reload.Reloader[string]) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v, want nil after its context's end", err)
		}
	})
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("error %v, want one with %q", err, want)
	}
}

func TestNewRefuses(t *testing.T) {
	for want, o := range map[string]reload.Options[string]{
		"Options.Sources is empty":                     {Compile: compile},
		"Options.Compile is nil":                       {Sources: []reload.Source{&memory{}}},
		"Options.Poll is -1ns, must not be negative":   {Sources: []reload.Source{&memory{}}, Compile: compile, Poll: -1},
		"Options.Settle is -1ns, must not be negative": {Sources: []reload.Source{&memory{}}, Compile: compile, Settle: -1},
	} {
		_, err := reload.New(o)
		wantError(t, err, want)
	}
}

func TestFirstLoadReadsOnceAndFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "bad"}
		r, events := inMemory(t, src)
		if r.Get() != "" {
			t.Fatalf("before the first load: %q", r.Get())
		}
		start := time.Now()
		wantError(t, r.Load(t.Context()), `f: "bad" is bad`)
		if reads := src.count(); reads != 1 || time.Since(start) != 0 {
			t.Fatalf("%d reads in %v, want 1 at once", reads, time.Since(start))
		}
		events.want(t, `start refused: f: "bad" is bad`)

		src.set("a", nil)
		if err := r.Load(t.Context()); err != nil || r.Get() != "a" {
			t.Fatalf("%q, %v", r.Get(), err)
		}
		events.want(t, "request loaded")
	})
}

func TestLoadJudgesContentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "a"}
		r, events := inMemory(t, src)
		load := func(want string) {
			t.Helper()
			err := r.Load(t.Context())
			if (err == nil) != (want == "") {
				t.Fatalf("Load: %v, want %q", err, want)
			}
			if err != nil {
				wantError(t, err, want)
			}
		}
		load("")
		load("")
		events.want(t, "start loaded")

		src.set("bad", nil)
		load(`"bad" is bad`)
		load(`"bad" is bad`)
		events.want(t, `request refused: f: "bad" is bad`)

		src.set("a", nil)
		load("")
		load("")
		events.want(t, "request loaded")

		src.set("", errors.New("open f: gone"))
		load("open f: gone")
		load("open f: gone")
		src.set("panic", nil)
		load("compiling panicked: panic")
		src.set("b", nil)
		load("")
		events.want(t, "request refused: open f: gone", "request refused: compiling panicked: panic", "request loaded")

		s := r.Status()
		if s.Loads != 3 || s.Refused != 3 || s.Err != nil || s.Files != 1 || len(s.Hash) != 64 ||
			!s.LoadedAt.Equal(time.Now()) || !s.ErrAt.IsZero() {
			t.Fatalf("%+v", s)
		}
	})
}

func TestRunFollowsHintsAndPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "a"}
		r, events := inMemory(t, src)
		must(t, r.Load(t.Context()))
		run(t, r)
		time.Sleep(time.Second)
		events.want(t, "start loaded")

		src.set("b", nil)
		src.hint()
		time.Sleep(reload.DefaultSettle - 1)
		synctest.Wait()
		if r.Get() != "a" {
			t.Fatalf("%q before it has settled", r.Get())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if r.Get() != "b" {
			t.Fatalf("%q when it has settled", r.Get())
		}
		events.want(t, "watch loaded")

		src.set("c", nil) // no hint
		time.Sleep(reload.DefaultPoll + reload.DefaultSettle)
		synctest.Wait()
		events.want(t, "poll loaded")

		src.set("bad", nil)
		src.hint()
		time.Sleep(5 * reload.DefaultPoll)
		synctest.Wait()
		events.want(t, `watch refused: f: "bad" is bad`)
		wantError(t, r.Run(t.Context()), "running already")
	})
}

// If a read returns a mix of old and new files, or half a file, the next read differs, so the content is not compiled.
func TestOnlyWhatStaysIsCompiled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "a"}
		r, events := inMemory(t, src)
		must(t, r.Load(t.Context()))
		src.next = []string{"bad 1", "bad 2", "bad 3", "b"}
		must(t, r.Load(t.Context()))
		events.want(t, "start loaded", "request loaded")
		if r.Get() != "b" {
			t.Fatalf("%q", r.Get())
		}
		// Back to what is in force: nothing to do.
		src.next = []string{"bad 4", "b"}
		must(t, r.Load(t.Context()))
		events.want(t)
	})
}

// A hint that comes while content settles does not end the load, because that load reads the newer content.
func TestAHintWhileContentSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "a"}
		r, _ := inMemory(t, src)
		must(t, r.Load(t.Context()))
		run(t, r)
		time.Sleep(time.Second)
		src.set("slow", nil)
		src.hint()
		time.Sleep(reload.DefaultSettle / 2)
		src.hint()
		time.Sleep(reload.DefaultSettle/2 + 20*time.Second)
		synctest.Wait()
		if r.Get() != "slow" {
			t.Fatalf("%q, want what has settled", r.Get())
		}
	})
}

func TestHintsForNothingDelayButNeverStarve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "a"}
		r, _ := inMemory(t, src)
		must(t, r.Load(t.Context()))
		run(t, r)
		synctest.Wait()
		for range 1000 { // a second of them, and content that stays
			src.hint()
			time.Sleep(time.Millisecond)
		}
		if reads := src.count(); reads > 25 {
			t.Fatalf("%d reads in a second of hints for nothing, want one in each Settle at most", reads)
		}
		src.set("b", nil)
		for range 3000 {
			src.hint()
			time.Sleep(time.Millisecond)
		}
		if r.Get() != "b" {
			t.Fatalf("%q after 3 s of hints, want b", r.Get())
		}
	})
}

func TestWhatNeverSettlesIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "a"}
		r, events := inMemory(t, src)
		must(t, r.Load(t.Context()))
		for i := range 10000 {
			src.next = append(src.next, strconv.Itoa(i))
		}
		run(t, r)
		time.Sleep(20 * time.Second)
		const text = "the files have kept changing for 2.5s; waiting until they stay the same for 50ms"
		events.want(t, "start loaded", "watch refused: "+text)
		wantError(t, r.Status().Err, text)

		src.mu.Lock()
		src.next = nil
		src.content = "b"
		src.mu.Unlock()
		time.Sleep(2 * reload.DefaultPoll)
		if r.Get() != "b" || r.Status().Err != nil {
			t.Fatalf("%q, %v", r.Get(), r.Status().Err)
		}
	})
}

func TestLoadsAreOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "a"}
		r, events := inMemory(t, src)
		must(t, r.Load(t.Context()))
		src.set("b", nil)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := r.Load(t.Context()); err != nil || r.Get() != "b" {
					t.Errorf("%q, %v", r.Get(), err)
				}
			})
		}
		wg.Wait()
		events.want(t, "start loaded", "request loaded")
	})
}

func TestLoadEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "a"}
		r, events := inMemory(t, src)
		must(t, r.Load(t.Context()))
		src.set("b", nil)
		ctx, cancel := context.WithTimeout(t.Context(), reload.DefaultSettle/2)
		defer cancel()
		go func() { _ = r.Load(t.Context()) }() // has the turn
		synctest.Wait()
		for _, who := range []string{"waiting", "late"} {
			if err := r.Load(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%s: %v", who, err)
			}
		}
		time.Sleep(reload.DefaultSettle)
		synctest.Wait()

		src.set("c", nil)
		ctx, cancel = context.WithTimeout(t.Context(), reload.DefaultSettle/2)
		defer cancel()
		if err := r.Load(ctx); !errors.Is(err, context.DeadlineExceeded) { // settling
			t.Fatal(err)
		}
		events.want(t, "start loaded", "request loaded")
	})
}

// Load may consume a hint for Run. If Load does not finish, it must send the hint again.
func TestALoadThatIsGivenUpLosesNoHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "a"}
		r, _ := inMemory(t, src)
		must(t, r.Load(t.Context()))
		run(t, r)
		time.Sleep(time.Second)
		src.hint() // for nothing: Run pauses
		time.Sleep(reload.DefaultSettle / 2)
		src.set("b", nil)
		src.hint()
		ctx, cancel := context.WithTimeout(t.Context(), reload.DefaultSettle/4)
		defer cancel()
		if err := r.Load(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		time.Sleep(3 * reload.DefaultSettle)
		if r.Get() != "b" {
			t.Fatalf("%q, want b long before the poll", r.Get())
		}
	})
}
