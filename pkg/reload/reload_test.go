package reload_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

func TestMain(m *testing.M) { casetest.FindLeaks(m) }

// memory is a Source in memory. If next is not empty, a read first replaces content with the first of next. It panics
// if content is "unreadable".
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
	if m.content == "unreadable" {
		panic(m.content)
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
