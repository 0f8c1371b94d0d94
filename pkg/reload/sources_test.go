package reload_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// The content has the files of all sources, in the order of the sources. If one source fails, the load fails.
func TestSeveralSources(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "A")
	other := &memory{content: "B"}
	r, err := reload.New(reload.Options[[]reload.File]{
		Sources: []reload.Source{reload.Paths(dir), other}, Settle: time.Millisecond,
		Compile: func(_ context.Context, files []reload.File) ([]reload.File, error) { return slices.Clone(files), nil },
	})
	must(t, err)
	must(t, r.Load(t.Context()))
	want := reload.NewSnapshot([]reload.File{
		{Name: filepath.Join(dir, "a.yaml"), Data: []byte("A")}, {Name: "f", Data: []byte("B")},
	})
	if diff := cmp.Diff(want, reload.Snapshot{Files: r.Get(), Hash: r.Status().Hash}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	other.set("B", errors.New("away"))
	if err := r.Load(t.Context()); err == nil || err.Error() != "away" || len(r.Get()) != 2 {
		t.Errorf("%v, %v: half of what there should be was given", r.Get(), err)
	}
}

// Watch sends a hint, because fsnotify reports it, if a file is written, replaced by a rename, new, or in a new
// directory, or if a link has a new target, as in a ConfigMap.
func TestWatchHearsOfChanges(t *testing.T) {
	reload.SetWatchEvery(time.Hour)
	defer reload.SetWatchEvery(time.Second)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write(t, path("a.yaml"), "1")
	for _, version := range []string{"..1", "..2"} {
		must(t, os.Mkdir(path(version), 0o750))
		write(t, path(version+"/c.yaml"), "of "+version)
	}
	must(t, os.Symlink("..1", path("..data")))
	must(t, os.Symlink("..data/c.yaml", path("c.yaml")))
	changed := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { reload.Paths(dir).Watch(ctx, changed) })
	defer watch.Wait()
	defer stop()
	<-changed
	for _, change := range []struct {
		what string
		do   func()
	}{
		{"writing", func() { write(t, path("a.yaml"), "22") }},
		{"renaming", func() { write(t, path(".a"), "333"); must(t, os.Rename(path(".a"), path("a.yaml"))) }},
		{"a new directory", func() { must(t, os.Mkdir(path("d"), 0o750)); write(t, path("d/d.yaml"), "d") }},
		{"writing in it", func() { write(t, path("d/d.yaml"), "dd") }},
		{"another ..data", func() { must(t, os.Symlink("..2", path("..new"))); must(t, os.Rename(path("..new"), path("..data"))) }},
	} {
		change.do()
		casetest.Receive(t, changed, "hint of "+change.what)
	}
}

func TestHashIsOfNamesContentsAndOrder(t *testing.T) {
	files := func(pairs ...string) (files []reload.File) {
		for i := 0; i < len(pairs); i += 2 {
			files = append(files, reload.File{Name: pairs[i], Data: []byte(pairs[i+1])})
		}
		return files
	}
	hashes := map[string]bool{}
	for _, f := range [][]reload.File{
		nil, files("", ""), files("a", "bc"), files("ab", "c"), files("a", "b"), files("a", "", "b", ""),
		files("b", "", "a", ""), files("ab", ""),
	} {
		hash := reload.NewSnapshot(f).Hash
		if hashes[hash] {
			t.Errorf("%v has another's hash", f)
		}
		hashes[hash] = true
		if again := reload.NewSnapshot(f).Hash; again != hash || reload.ShortHash(hash) != hash[:12] {
			t.Errorf("%s, %s, %s", hash, again, reload.ShortHash(hash))
		}
	}
	if reload.ShortHash("") != "" {
		t.Error("the short form of no hash is not empty")
	}
}
