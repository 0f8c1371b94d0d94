package reload_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/pkg/reload"
)

// given is a source that gives what it was given.
type given struct {
	files           []reload.File
	err, watchError error
}

func (g *given) Read(context.Context) (reload.Snapshot, error) {
	return reload.NewSnapshot(g.files), g.err
}

func (g *given) Watch(ctx context.Context, changed chan<- struct{}) error {
	if g.watchError != nil {
		return g.watchError
	}
	changed <- struct{}{}
	<-ctx.Done()
	return nil
}

// The files of several sources are one content: those of the first, then those of the next, or none.
func TestSeveralSources(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "A")
	other := &given{files: []reload.File{{Name: "other", Data: []byte("B")}}}
	r, err := reload.New(reload.Options[[]reload.File]{
		Sources: []reload.Source{reload.Paths(dir), other}, Settle: time.Millisecond,
		Compile: func(_ context.Context, files []reload.File) ([]reload.File, error) { return slices.Clone(files), nil },
	})
	must(t, err)
	must(t, r.Load(t.Context()))
	want := reload.NewSnapshot([]reload.File{
		{Name: filepath.Join(dir, "a.yaml"), Data: []byte("A")}, {Name: "other", Data: []byte("B")},
	})
	if diff := cmp.Diff(want, reload.Snapshot{Files: r.Get(), Hash: r.Status().Hash}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	other.err = errors.New("away")
	if err := r.Load(t.Context()); err == nil || err.Error() != "away" || len(r.Get()) != 2 {
		t.Errorf("%v, %v: half of what there should be was given", r.Get(), err)
	}
}

// A source that cannot be watched is told of, and does not end the watch of the other.
func TestSeveralWatches(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	told, loads := make(chan error, 1), make(chan string, 2)
	other := &given{files: []reload.File{{Name: "other", Data: []byte("B")}}}
	r, err := reload.New(reload.Options[string]{
		Sources: []reload.Source{&given{watchError: errors.New("no watches left")}, other}, Poll: time.Hour,
		Compile: compile,
		OnLoad: func(e reload.Event) {
			if e.Outcome == reload.Unwatched {
				told <- e.Err
				return
			}
			loads <- string(e.Reason)
		},
	})
	must(t, err)
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	if err := <-told; err.Error() != "no watches left" {
		t.Error(err)
	}
	select {
	case <-loads:
	case <-time.After(10 * time.Second):
		t.Fatal("the other source is not watched")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
