package reload_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/pkg/reload"
)

// must fails the test on any error, for steps that only prepare a test.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
}

// replace writes a temporary file and renames it to path, as careful editors do.
func replace(t *testing.T, path, content string) {
	t.Helper()
	write(t, path+".tmp", content)
	must(t, os.Rename(path+".tmp", path))
}

// configMap updates a ConfigMap as a kubelet does: it makes a new directory, renames the link ..data, and removes the
// old directory.
func configMap(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	data := filepath.Join(dir, "..data")
	old, _ := os.Readlink(data)
	for name, content := range files {
		write(t, filepath.Join(dir, "..v"+version, name), content)
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			must(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
		}
	}
	must(t, os.Symlink("..v"+version, data+"_tmp"), os.Rename(data+"_tmp", data))
	if old != "" {
		must(t, os.RemoveAll(filepath.Join(dir, old)))
	}
}

// live is a running Reloader of real files. Its poll is so slow that only the watch can find a change.
type live struct {
	*reload.Reloader[string]
	events chan reload.Event
}

func follow(t *testing.T, o reload.Options[string], paths ...string) live {
	t.Helper()
	l := live{events: make(chan reload.Event, 1000)}
	if o.Sources == nil {
		o.Sources = []reload.Source{reload.Paths(paths...)}
	}
	if o.Poll == 0 {
		o.Poll = time.Hour
	}
	o.Compile, o.OnLoad = compile, func(e reload.Event) { l.events <- e }
	var err error
	if l.Reloader, err = reload.New(o); err != nil {
		t.Fatal(err)
	}
	must(t, l.Load(t.Context()))
	l.next(t)
	run(t, l.Reloader)
	return l
}

func (l live) next(t *testing.T) reload.Event {
	t.Helper()
	select {
	case e := <-l.events:
		return e
	case <-time.After(5 * time.Second):
		t.Fatalf("nothing happened in 5 s; in force is %q", l.Get())
		return reload.Event{}
	}
}

// await waits until want is live. Other loads may come before, because some edits are several changes.
func (l live) await(t *testing.T, want string) {
	t.Helper()
	for {
		e := l.next(t)
		if e.Outcome == reload.Loaded && e.Reason != reload.ReasonWatch {
			t.Fatalf("%+v, want it from the watch", e)
		}
		if l.Get() == want && e.Err == nil {
			return
		}
	}
}

func (l live) awaitError(t *testing.T, want ...string) {
	t.Helper()
	for {
		e := l.next(t)
		if e.Outcome != reload.Refused {
			continue
		}
		for _, w := range want {
			wantError(t, e.Err, w)
		}
		return
	}
}

// still calls Load, and checks that the content has not changed.
func (l live) still(t *testing.T) {
	t.Helper()
	must(t, l.Load(t.Context()))
	select {
	case e := <-l.events:
		t.Fatalf("an event for nothing: %+v", e)
	default:
	}
}

func TestEditsOfADirectory(t *testing.T) {
	dir := t.TempDir()
	a, b, sub := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yml"), filepath.Join(dir, "sub")
	write(t, a, "a1")
	l := follow(t, reload.Options[string]{}, dir)
	for _, step := range []struct {
		what, want string
		edit       func()
	}{
		{"write and rename", "a2", func() { replace(t, a, "a2") }},
		{"write in place", "a3", func() { write(t, a, "a3") }},
		{"vim's backup", "a4", func() {
			must(t, os.Rename(a, a+"~"))
			write(t, a, "a4")
			must(t, os.Remove(a+"~"))
		}},
		{"a second file", "a4+b1", func() { write(t, b, "b1") }},
		{"a new subdirectory, filled at once", "a4+b1+c1", func() { write(t, filepath.Join(sub, "x", "y", "c.yaml"), "c1") }},
		{"an edit in it", "a4+b1+c2", func() { write(t, filepath.Join(sub, "x", "y", "c.yaml"), "c2") }},
		{"the subdirectory renamed", "a4+b1+c2", func() { must(t, os.Rename(sub, sub+"2")) }},
		{"an edit in it under its new name", "a4+b1+c3", func() {
			replace(t, filepath.Join(sub+"2", "x", "y", "c.yaml"), "c3")
		}},
		{"another in its place", "a4+b1+d1", func() {
			must(t, os.Rename(sub+"2", filepath.Join(t.TempDir(), "away")))
			write(t, filepath.Join(sub+"2", "d.yaml"), "d1")
		}},
		{"an edit in that", "a4+b1+d2", func() { write(t, filepath.Join(sub+"2", "d.yaml"), "d2") }},
		{"a file away, a directory away", "a4", func() { must(t, os.Remove(b), os.RemoveAll(sub+"2")) }},
	} {
		t.Log(step.what)
		step.edit()
		l.await(t, step.want)
	}
	write(t, filepath.Join(dir, ".a.yaml.swp"), "bad")
	write(t, filepath.Join(dir, "a.yaml.bak"), "bad")
	must(t, os.Chtimes(a, time.Now(), time.Now()))
	l.still(t)
}

func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	configMap(t, dir, "1", map[string]string{"a.yaml": "a1", "b.yaml": "b1"})
	for name, paths := range map[string][]string{
		"directory": {dir},
		"files":     {filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")},
	} {
		t.Run(name, func(t *testing.T) {
			configMap(t, dir, "2", map[string]string{"a.yaml": "a2", "b.yaml": "b2"})
			l := follow(t, reload.Options[string]{}, paths...)
			configMap(t, dir, "3", map[string]string{"a.yaml": "a3", "b.yaml": "b3"})
			if e := l.next(t); e.Err != nil || e.Files != 2 || l.Get() != "a3+b3" {
				t.Fatalf("%+v, %q", e, l.Get())
			}
			configMap(t, dir, "4", map[string]string{"a.yaml": "a4", "b.yaml": "bad"})
			l.awaitError(t, filepath.Join(dir, "b.yaml"), `"bad" is bad`)
			configMap(t, dir, "5", map[string]string{"a.yaml": "a3", "b.yaml": "b3"})
			l.await(t, "a3+b3")
			l.still(t)
		})
	}
}

// A given directory is reached through a link, "current -> releases/2", and has a link to a file elsewhere.
func TestLinksOnTheWay(t *testing.T) {
	dir := t.TempDir()
	current, shared := filepath.Join(dir, "current"), filepath.Join(dir, "shared", "deep", "list.txt")
	write(t, shared, "s1")
	for _, release := range []string{"1", "2"} {
		rules := filepath.Join(dir, "releases", release, "rules")
		write(t, filepath.Join(rules, "a.yaml"), "a"+release)
		must(t, os.Symlink(shared, filepath.Join(rules, "s.yaml")))
		must(t, os.Symlink("../..", filepath.Join(rules, "up"))) // a loop, and the way to the other release
	}
	must(t, os.Symlink("releases/1", current))
	l := follow(t, reload.Options[string]{}, filepath.Join(current, "rules"))
	if l.Get() != "a1+s1+a2" {
		t.Fatalf("%q", l.Get())
	}
	write(t, shared, "s2")
	l.await(t, "a1+s2+a2")
	must(t, os.Symlink("releases/2", current+"_tmp"), os.Rename(current+"_tmp", current))
	l.await(t, "a2+s2+a1")
	replace(t, shared, "s3")
	l.await(t, "a2+s3+a1")
	replace(t, filepath.Join(dir, "releases", "1", "rules", "a.yaml"), "a1.1")
	l.await(t, "a2+s3+a1.1")
}

func TestADirectoryVanishesAndReturns(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "etc", "rules")
	path := filepath.Join(dir, "a.yaml")
	write(t, path, "1")
	l := follow(t, reload.Options[string]{}, dir)

	must(t, os.RemoveAll(dir))
	l.awaitError(t, dir, "no such file or directory")
	if s := l.Status(); l.Get() != "1" || s.Refused != 1 || s.Err == nil {
		t.Fatalf("%q, %+v", l.Get(), s)
	}
	write(t, path, "2")
	l.await(t, "2")
	write(t, path, "3") // the new directory is watched
	l.await(t, "3")

	must(t, os.Rename(filepath.Join(top, "etc"), filepath.Join(top, "gone"))) // and its parent
	l.awaitError(t, dir, "no such file or directory")
	must(t, os.Rename(filepath.Join(top, "gone"), filepath.Join(top, "etc")))
	l.await(t, "3")
	write(t, path, "4")
	l.await(t, "4")

	must(t, os.Remove(path))
	l.awaitError(t, dir+": no *.yaml or *.yml file in this directory")
	must(t, os.RemoveAll(dir), os.WriteFile(dir, []byte("5"), 0o644)) // a file in its place
	l.await(t, "5")
}

func TestABadFileAmongGoodOnes(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		write(t, filepath.Join(dir, name+".yaml"), name)
	}
	l := follow(t, reload.Options[string]{}, dir)
	bad := filepath.Join(dir, "b.yaml")
	write(t, bad, "bad")
	l.awaitError(t, bad, `"bad" is bad`)
	wantError(t, l.Load(t.Context()), `"bad" is bad`)
	if s := l.Status(); l.Get() != "a+b+c" || s.Refused != 1 || s.Loads != 1 {
		t.Fatalf("%q, %+v", l.Get(), s)
	}
	write(t, bad, "better")
	l.await(t, "a+better+c")
	must(t, os.Symlink("nowhere", filepath.Join(dir, "d.yaml")))
	l.awaitError(t, filepath.Join(dir, "d.yaml"), "no such file or directory")
	write(t, filepath.Join(dir, "nowhere"), "d")
	l.await(t, "a+better+c+d")
}

func TestAFileGivenItself(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "conf/limits", "1")
	write(t, "conf/bad.yaml", "bad")
	l := follow(t, reload.Options[string]{}, "./conf/limits")
	write(t, "conf/limits", "2")
	l.await(t, "2")
	replace(t, "conf/limits", "3")
	l.await(t, "3")
	must(t, os.Remove("conf/limits"))
	l.awaitError(t, "conf/limits: no such file or directory")
	write(t, "conf/limits", "4")
	l.await(t, "4")
	write(t, "conf/bad.yaml", "bad 2")
	l.still(t)
}

func TestWhatIsRead(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, path := range []string{
		"r/b.yaml", "r/a.yml", "r/a/z.yaml", "r/.hidden.yaml", "r/.git/c.yaml", "r/README.md", "r/c.yaml.bak", "r/D.YAML",
		"elsewhere/e.yaml", "elsewhere/e.txt", ".dot/f.yaml",
	} {
		write(t, path, path)
	}
	must(t,
		os.Symlink("../elsewhere", "r/dirlink"), os.Symlink("../elsewhere/e.txt", "r/filelink.yaml"),
		os.Symlink("b.yaml", "r/b2.yaml"), os.Symlink("..", "r/loop"), os.Symlink("self", "r/self"),
		os.Symlink("nowhere", "r/dangling"), syscall.Mkfifo("r/pipe", 0o644),
	)
	abs, err := filepath.Abs("r")
	must(t, err)
	for _, test := range []struct{ paths, want []string }{
		{
			[]string{"./r/"},
			[]string{"r/a/z.yaml", "r/a.yml", "r/b.yaml", "r/dirlink/e.yaml", "r/filelink.yaml"},
		},
		{[]string{"r/b2.yaml", "elsewhere", "r"}, []string{
			"r/b2.yaml", "elsewhere/e.yaml", "r/a/z.yaml", "r/a.yml", "r/filelink.yaml",
		}},
		{[]string{"r/README.md", ".dot", "r/loop/.dot"}, []string{"r/README.md", ".dot/f.yaml"}},
		{[]string{abs + "/a"}, []string{abs + "/a/z.yaml"}},
	} {
		snapshot, err := reload.Paths(test.paths...).Read(t.Context())
		must(t, err)
		var names []string
		for _, f := range snapshot.Files {
			names = append(names, f.Name)
		}
		if diff := cmp.Diff(test.want, names); diff != "" {
			t.Errorf("%q (-want +got):\n%s", test.paths, diff)
		}
		if snapshot.Hash != reload.NewSnapshot(snapshot.Files).Hash {
			t.Errorf("%q: the hash is not that of the files", test.paths)
		}
	}
}

func TestWhatCannotBeRead(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "good.yaml", "")
	write(t, "links/good.yaml", "")
	must(t,
		os.MkdirAll("empty/sub", 0o755), os.Symlink(".", "empty/sub/loop"), syscall.Mkfifo("pipe.yaml", 0o644),
		os.Symlink("nowhere", "links/dangling.yaml"), os.Symlink("round.yaml", "links/round.yaml"),
		os.WriteFile("large.yaml", nil, 0o644), os.Truncate("large.yaml", reload.DefaultMaxSize+1),
	)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		ctx   context.Context
		paths []string
		want  []string
	}{
		{t.Context(), nil, []string{"no path to read files from"}},
		{t.Context(), []string{"good.yaml", "absent", "absent2"}, []string{"absent: no such file", "absent2: no such file"}},
		{t.Context(), []string{"empty"}, []string{"empty: no *.yaml or *.yml file in this directory"}},
		{t.Context(), []string{"links"}, []string{"links/dangling.yaml: no such file", "links/round.yaml: too many"}},
		{t.Context(), []string{"pipe.yaml"}, []string{"pipe.yaml: not a regular file"}},
		{t.Context(), []string{"large.yaml"}, []string{"large.yaml: the files are larger than 16 MiB together; remove files without rules, or raise MaxSize"}},
		{ended, []string{"good.yaml"}, []string{"context canceled"}},
	} {
		_, err := reload.Paths(test.paths...).Read(test.ctx)
		for _, want := range test.want {
			wantError(t, err, want)
		}
	}
}

// pair is compiled from two files that must have the same number.
type pair struct{ a, b string }

func TestAThousandReloadsAndNoMixture(t *testing.T) {
	dir := t.TempDir()
	set := func(generation int) {
		s := strconv.Itoa(generation)
		configMap(t, dir, s, map[string]string{"a.yaml": s + strings.Repeat(" ", 1000), "b.yaml": s})
	}
	set(0)
	var refused []string
	var unsettled uint64
	r, err := reload.New(reload.Options[*pair]{
		Sources: []reload.Source{reload.Paths(dir)}, Poll: 3 * time.Millisecond, Settle: time.Millisecond,
		OnLoad: func(e reload.Event) { // one at a time
			switch {
			case e.Err == nil:
			case strings.Contains(e.Err.Error(), "the files have kept changing for"):
				unsettled++ // on a busy machine one swap may take longer than the files get to settle
			default:
				refused = append(refused, e.Err.Error())
			}
		},
		Compile: func(_ context.Context, files []reload.File) (*pair, error) {
			return &pair{strings.TrimSpace(string(files[0].Data)), string(files[1].Data)}, nil
		},
	})
	must(t, err, r.Load(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) }) // in the middle of whatever the writer does
	var gets atomic.Int64
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				for range 100 {
					if p := r.Get(); p.a != p.b {
						t.Errorf("a mixture: %+v", p)
						return
					}
				}
				gets.Add(100)
				time.Sleep(20 * time.Microsecond) // leave the cores to those who write and load
			}
		})
	}
	for generation := 1; generation <= 1000 && !t.Failed(); generation++ {
		set(generation)
		if err := r.Load(ctx); err != nil {
			t.Errorf("generation %d: %v", generation, err)
		}
		if p := r.Get(); p.a != strconv.Itoa(generation) {
			t.Errorf("generation %d: in force is %+v", generation, p)
		}
	}
	cancel()
	wg.Wait()
	s := r.Status()
	t.Logf("%d loads, %d unsettled, %d reads of the value meanwhile", s.Loads, unsettled, gets.Load())
	if s.Loads != 1001 || s.Refused != unsettled {
		t.Errorf("%d loads and %d refused, want 1001 and none: %q", s.Loads, s.Refused-unsettled, refused)
	}
}
