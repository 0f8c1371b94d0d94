package reload_test

import (
	"context"
	"errors"
	"path/filepath"
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

func TestJoin(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "A")
	other := &given{files: []reload.File{{Name: "other", Data: []byte("B")}}}
	both := reload.Join(nil, reload.Paths(dir), other)
	got, err := both.Read(t.Context())
	must(t, err)
	want := reload.NewSnapshot([]reload.File{
		{Name: filepath.Join(dir, "a.yaml"), Data: []byte("A")}, {Name: "other", Data: []byte("B")},
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	other.err = errors.New("away")
	if got, err := both.Read(t.Context()); err == nil || err.Error() != "away" || len(got.Files) > 0 {
		t.Errorf("%v, %v: half of what there should be was given", got, err)
	}
	if one := reload.Join(nil, other); one != reload.Source(other) {
		t.Errorf("one source joined is %v, want itself", one)
	}
}

// A source that cannot be watched is told of, and does not end the watch of the other.
func TestJoinWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan error, 1)
	both := reload.Join(func(err error) { told <- err }, &given{watchError: errors.New("no watches left")}, &given{})
	changed, ended := make(chan struct{}), make(chan error)
	go func() { ended <- both.Watch(ctx, changed) }()
	if err := <-told; err.Error() != "no watches left" {
		t.Error(err)
	}
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("the other source is not watched")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
