package embedded

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// bomb panics the first time. again is closed the second time: what panicked has started again.
type bomb struct {
	count atomic.Int64
	again chan struct{}
}

func newBomb() *bomb { return &bomb{again: make(chan struct{})} }

func (b *bomb) touch() {
	switch b.count.Add(1) {
	case 1:
		panic("boom")
	case 2:
		close(b.again)
	}
}

// await returns when the part works again.
func (b *bomb) await(t *testing.T) {
	t.Helper()
	select {
	case <-b.again:
	case <-time.After(30 * time.Second):
		t.Error("the part has not started again")
	}
}

// Parts that panic in goroutines of their own start again while an instance lives, which counts and logs the panics
// and goes on deciding.
func TestPartsOutlivePanics(t *testing.T) {
	log := &launch.Buffer{}
	m := newModule(t)
	m.Log = log
	f := newTestFilter(t, m, configOf(t, []string{rulesFlag(t)}))
	parts := map[string]func(t *testing.T, b *bomb){
		"counters": sweptCounters,
		"log":      writtenLog,
		"rules":    watchedRules,
		"one goroutine": func(t *testing.T, b *bomb) {
			t.Helper()
			panics.Go("once", b.touch)
			panics.Go("once", b.touch)
			b.await(t)
		},
	}
	t.Run("parts", func(t *testing.T) {
		for name, part := range parts {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				part(t, newBomb())
			})
		}
	})
	page := httptest.NewRecorder()
	f.instance.app.Metrics().Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	if want := fmt.Sprintf("\nweir_panics_total %d\n", len(parts)); !strings.Contains(page.Body.String(), want) {
		t.Errorf("the metrics have not %q", want)
	}
	if a, _ := ask(t.Context(), f, nil, "ann"); a.Outcome != OK {
		t.Errorf("after the panics: %+v", a)
	}
	f.Close()
	m.Wait(10 * time.Second)
	if text := log.String(); !strings.Contains(text, "panic=boom") || !strings.Contains(text, "touch") {
		t.Errorf("the log has no panic with its stack:\n%s", text)
	}
}

// Panics are caught also when the last instance has closed: what it left behind must not end Envoy.
func TestPanicAfterTheLastInstance(t *testing.T) {
	log := &launch.Buffer{}
	m := newModule(t)
	m.Log = log
	newTestFilter(t, m, configOf(t, []string{rulesFlag(t)})).Close()
	m.Wait(10 * time.Second)
	if !panics.Catch("left behind", newBomb().touch) || !strings.Contains(log.String(), `in="left behind" panic=boom`) {
		t.Errorf("the panic was not caught and logged:\n%s", log.String())
	}
}

// failingStore fails in each call.
type failingStore struct {
	limiter.Store
	fail func() error
}

func (s failingStore) Take(context.Context, []limiter.Hit, []limiter.Decision) error { return s.fail() }

// failWith gives the filter a store that fails.
func failWith(t *testing.T, f *Filter, fail func() error) {
	t.Helper()
	set := casetest.Compile(t, shop)
	var err error
	f.decider, err = decide.New(decide.Options{
		Rules: func() *descriptors.Set { return set }, Store: failingStore{fail: fail},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.instance.collector = &collector{decider: f.decider}
}

// A store that panics on Envoy's worker, and in the background, fails the request alone.
func TestStorePanics(t *testing.T) {
	f := newTestFilter(t, newModule(t), configOf(t, []string{rulesFlag(t)}, `"failure_mode_deny": true`))
	failWith(t, f, func() error { panic("boom") })
	for _, together := range []int{1, 3} {
		var all []*batchedWaiter
		for range together {
			all = append(all, begin(t, f, "ann"))
		}
		f.module.Send()
		for _, w := range all {
			if <-w.ended; w.answer.Outcome != Failed || w.answer.Status != 500 {
				t.Errorf("%d requests: answer %+v", together, w.answer)
			}
		}
	}
}

// A request that is shed counts by the code that the service answers with.
func TestShedRequestsCount(t *testing.T) {
	f := newTestFilter(t, newModule(t), configOf(t, []string{rulesFlag(t)}))
	failWith(t, f, func() error { return limiter.ErrShed })
	w := begin(t, f, "ann")
	f.module.Send()
	<-w.ended
	page := httptest.NewRecorder()
	f.instance.app.Metrics().Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	if !strings.Contains(page.Body.String(), `weir_requests_rejected_total{code="ResourceExhausted"} 1`) {
		t.Errorf("%+v, counted as:\n%s", w.answer, page.Body)
	}
}

// inBackground runs f until the test ends.
func inBackground(t *testing.T, f func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func sweptCounters(t *testing.T, b *bomb) {
	t.Helper()
	s, err := memstore.New(memstore.Options{
		SweepEvery: 10 * time.Millisecond,
		Now: func() int64 {
			b.touch()
			return 0
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.await(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func writtenLog(t *testing.T, b *bomb) {
	t.Helper()
	q := logging.NewQueue(func([]byte) error {
		b.touch()
		return nil
	}, func(logging.QueueStats) {})
	q.Put([]byte("this line is lost\n"))
	proctest.Eventually(t, "the first line is written", func() bool { return b.count.Load() > 0 })
	q.Put([]byte("this line is written\n"))
	b.await(t)
	if !q.Close(30 * time.Second) {
		t.Error("the queue did not end")
	}
}

// ruleSource is a source of rules whose watch touches a bomb.
type ruleSource struct {
	reload.Source
	bomb *bomb
}

func (s *ruleSource) Watch(ctx context.Context, _ chan<- struct{}) {
	s.bomb.touch()
	<-ctx.Done()
}

func watchedRules(t *testing.T, b *bomb) {
	t.Helper()
	quiet := newBomb()
	quiet.count.Store(2) // panics no longer
	both, err := reload.New(reload.Options[string]{
		Sources: []reload.Source{&ruleSource{bomb: b}, &ruleSource{bomb: quiet}},
		Compile: func(context.Context, []reload.File) (string, error) { return "", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	inBackground(t, func(ctx context.Context) { _ = both.Run(ctx) })
	b.await(t)
}
