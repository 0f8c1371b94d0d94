package decisionlog

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/longtest"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

func TestMain(m *testing.M) { longtest.Main(m, 100) }

const rules = `
domain: shop
descriptors:
- {key: user, rate_limit: {name: daily, unit: day, requests_per_unit: 2}}
- {key: secret, hash_values: true, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: path, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
`

var secret = []byte("0123456789abcdef")

// logged is a service whose decisions are logged.
type logged struct {
	*decide.Decider
	*Log
	path string
	said proctest.Buffer // by the process's log
	end  func()          // writes what is left
}

// start logs everything, plain, to a file, unless change says otherwise.
func start(tb testing.TB, change func(*Options)) *logged {
	tb.Helper()
	l := &logged{path: filepath.Join(tb.TempDir(), "decisions.log")}
	o := Options{
		To: l.path, Sample: 1, SampleDenied: 1, Rate: 1_000_000, Values: Plain, Key: secret,
		Log: slog.New(slog.NewTextHandler(&l.said, nil)),
	}
	if change != nil {
		change(&o)
	}
	var err error
	if l.Log, err = New(o); err != nil {
		tb.Fatal(err)
	}
	l.Decider = service(tb, l.Log)
	l.end = l.Close
	tb.Cleanup(l.end)
	return l
}

func service(tb testing.TB, watchers ...decide.Watcher) *decide.Decider {
	tb.Helper()
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(rules)}})
	if err != nil {
		tb.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	d, err := decide.New(decide.Options{Rules: func() *descriptors.Set { return set }, Store: store, Watchers: watchers})
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// ask asks for one hit of descriptors of one entry such as user=ann.
func (l *logged) ask(tb testing.TB, pairs ...string) {
	tb.Helper()
	if _, err := l.Decide(tb.Context(), requestOf(l.Decider, pairs...)); err != nil {
		tb.Fatal(err)
	}
}

func requestOf(d *decide.Decider, pairs ...string) *decide.Request {
	r := d.NewRequest()
	r.Domain = "shop"
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		r.Add(decide.Descriptor{Cost: 1, Entries: []descriptors.Entry{{Key: k, Value: v}}})
	}
	return r
}

// text is what was written, once the log has ended.
func (l *logged) text(tb testing.TB) string {
	tb.Helper()
	l.end()
	data, err := os.ReadFile(l.path)
	if err != nil {
		tb.Fatal(err)
	}
	return string(data)
}

func (l *logged) read(tb testing.TB) (all []Line) {
	tb.Helper()
	for text := range strings.Lines(l.text(tb)) {
		var line Line
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			tb.Fatalf("%v: %s", err, text)
		}
		all = append(all, line)
	}
	return all
}

func TestLineSaysWhatWasDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, nil)
		r := requestOf(l.Decider, "user=ann", "path=/a\"\\\x01", "none=x")
		r.Descriptors[0].Cost = 3
		r.Descriptors[2].Own = decide.OwnLimit{Requests: 7, Window: time.Minute}
		if _, err := l.Decide(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		l.ask(t, "user=bob")
		want := `{"time":"2000-01-01T00:00:00.000000Z","domain":"shop","answer":"over_limit","store_failed":false,` +
			`"weight":1,` +
			`"descriptors":[{"entries":[{"key":"user","value":"ann"}],"cost":3,"rule":"user"},` +
			`{"entries":[{"key":"path","value":"/a\"\\\u0001"}],"cost":1,"rule":"path"},` +
			`{"entries":[{"key":"none","value":"x"}],"cost":1,"limit":{"requests_per_unit":7,"window_seconds":60}}],` +
			`"limits":[{"descriptor":0,"rule":"user","limit":"daily","cost":3,"outcome":"denied","remaining":0,` +
			`"retry_after_seconds":null,"key":"fixed_window|shop|user=ann"},` +
			`{"descriptor":1,"rule":"path","cost":1,"outcome":"shadow_denied","remaining":0,"retry_after_seconds":null,` +
			`"key":"fixed_window|shop|path=/a\"\\%01"},` +
			`{"descriptor":2,"rule":"(limit of the request)","cost":1,"outcome":"uncharged","remaining":7,` +
			`"key":"fixed_window@60000000us|shop|none=x"}]}` + "\n" +
			`{"time":"2000-01-01T00:00:00.000000Z","domain":"shop","answer":"ok","store_failed":false,"weight":1,` +
			`"descriptors":[{"entries":[{"key":"user","value":"bob"}],"cost":1,"rule":"user"}],` +
			`"limits":[{"descriptor":0,"rule":"user","limit":"daily","cost":1,"outcome":"allowed","remaining":1,` +
			`"key":"fixed_window|shop|user=bob"}]}` + "\n"
		if diff := cmp.Diff(want, l.text(t)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestValuesAreHidden(t *testing.T) {
	hash := HashValues(secret)("user", "ann@example.com")
	for _, tt := range []struct {
		values Values
		has    string
		hidden []string
	}{
		{Hashed, `"value":"` + hash + `"`, []string{"ann", "s3cret"}},
		{None, `{"entries":[{"key":"user"}]`, []string{"ann", "s3cret", "hmac:"}},
		{Plain, `"value":"ann@example.com"`, []string{"s3cret"}}, // of which the rule says hash_values
	} {
		t.Run(string(tt.values), func(t *testing.T) {
			l := start(t, func(o *Options) { o.Values = tt.values })
			l.ask(t, "user=ann@example.com", "secret=s3cret")
			text := l.text(t)
			if !strings.Contains(text, tt.has) {
				t.Errorf("no %s in %s", tt.has, text)
			}
			for _, hidden := range tt.hidden {
				if strings.Contains(text, hidden) {
					t.Errorf("%s is in %s", hidden, text)
				}
			}
		})
	}
}

// Equal values have equal hashes, unless the secret or the entry's key is another; the same with a random secret.
func TestHashes(t *testing.T) {
	h := HashValues(secret)("user", "ann")
	for _, other := range []string{
		HashValues(secret)("user", "bob"), HashValues(secret)("owner", "ann"),
		HashValues([]byte("fedcba9876543210"))("user", "ann"),
	} {
		if h == other {
			t.Errorf("%s twice", h)
		}
	}
	if !IsHash(h) || IsHash("hmac:ann") || h != HashValues(secret)("user", "ann") {
		t.Errorf("%s is no stable hash", h)
	}
	a, b := newHasher(nil), newHasher(nil)
	if a.hash("x") == b.hash("x") {
		t.Error("two processes without a key file have the same secret")
	}
}

func TestReadKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(" 0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if key, err := ReadKey(path); err != nil || string(key) != string(secret) {
		t.Errorf("%q, %v", key, err)
	}
	if err := os.WriteFile(path, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := ReadKey(path)
	if err == nil || !strings.Contains(err.Error(), "has 5 bytes, a key needs 16 or more: openssl rand") {
		t.Error(err)
	}
}

// Of allowed requests the share is written, of refused ones all, and each line says how many it stands for.
func TestSample(t *testing.T) {
	l := start(t, func(o *Options) { o.Sample = 0.1 })
	const n = 20_000
	for range n {
		l.ask(t, "none=x")
	}
	for range 100 {
		l.ask(t, "path=/") // shadow_mode: refused, though the request does not know
	}
	allowed, refused := 0.0, 0
	lines := l.read(t)
	for _, line := range lines {
		if len(line.Limits) == 0 {
			allowed += line.Weight
			continue
		}
		refused++
		if line.Weight != 1 || line.Limits[0].Outcome != "shadow_denied" {
			t.Fatalf("a refused request: %+v", line)
		}
	}
	if refused != 100 {
		t.Errorf("%d refused requests, want 100", refused)
	}
	if allowed < 0.8*n || allowed > 1.2*n { // 9 standard deviations
		t.Errorf("%d lines stand for %g requests, want about %d", len(lines), allowed, n)
	}
}

// What was decided before the end is written, however soon the end comes.
func TestEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.log")
	const ends = 20 // by chance, one may be written before it is told to end
	for range ends {
		l, err := New(Options{
			To: path, Sample: 1, SampleDenied: 1, Rate: 10, Values: None, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		d := service(t, l)
		if _, err := d.Decide(t.Context(), requestOf(d, "none=x")); err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	if text, err := os.ReadFile(path); err != nil || strings.Count(string(text), "\n") != ends {
		t.Errorf("%v, %d lines, want %d", err, strings.Count(string(text), "\n"), ends)
	}
}

func TestSampleOfNone(t *testing.T) {
	l := start(t, func(o *Options) { o.Sample, o.SampleDenied = 0, 0 })
	l.ask(t, "none=x")
	l.ask(t, "path=/")
	if text := l.text(t); text != "" {
		t.Error(text)
	}
}

// Beyond the rate lines are dropped and counted, and a line says how many.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, func(o *Options) { o.Rate = 10 })
		for range 25 {
			l.ask(t, "none=x")
		}
		<-time.After(time.Second)
		for range 25 {
			l.ask(t, "none=x")
		}
		<-time.After(logging.NoteEvery)
		synctest.Wait()
		l.ask(t, "none=x")
		got := l.read(t)
		if len(got) != 22 {
			t.Fatalf("%d lines, want 21 decisions and a note", len(got))
		}
		if diff := cmp.Diff(map[string]uint64{"rate": 30, "buffer": 0, "write_error": 0}, got[20].Dropped); diff != "" {
			t.Error(diff)
		}
		if s := l.Stats(); s.Written != 21 || s.Dropped[ByRate] != 30 {
			t.Errorf("%+v", s)
		}
	})
}

// A stream that nobody reads stops no request, and the process ends all the same.
func TestStuckStreamBlocksNobody(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := start(t, nil)
	l.out.close()
	l.out = output{file: w} // before the first line, so that the queue's goroutine sees it
	value := "user=" + strings.Repeat("x", 30_000)
	for range 500 { // 15 MB and more
		l.ask(t, value)
	}
	if s := l.Stats(); s.Dropped[FullBuffer] == 0 {
		t.Errorf("nothing was dropped: %+v", s)
	}
	l.end()
	for _, f := range []*os.File{r, w} { // lets the writer go
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A file that was moved is opened again; one that was emptied is appended to from its begin.
func TestRotation(t *testing.T) {
	l := start(t, nil)
	written := func(n uint64) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); l.Stats().Written < n; {
			if time.Now().After(deadline) {
				t.Fatalf("%d lines written, want %d", l.Stats().Written, n)
			}
			<-time.After(time.Millisecond)
		}
	}
	l.ask(t, "none=first")
	written(1)
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		t.Fatal(err)
	}
	l.ask(t, "none=second")
	written(2)
	data, err := os.ReadFile(l.path)
	if err != nil || !strings.Contains(string(data), "second") || strings.Contains(string(data), "first") {
		t.Errorf("after a rename: %v\n%s", err, data)
	}
	if err := os.Truncate(l.path, 0); err != nil {
		t.Fatal(err)
	}
	l.ask(t, "none=third")
	text := l.text(t)
	if !strings.HasPrefix(text, `{"time":`) || strings.Contains(text, "second") || !strings.Contains(text, "third") {
		t.Errorf("after a truncation: %q", text)
	}
}

// A full disk is told once, and lines that it did not take are counted.
func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full here")
	}
	l := start(t, func(o *Options) { o.To = "/dev/full" })
	for range 3 {
		l.ask(t, "none=x")
	}
	l.end()
	if s := l.Stats(); s.Written != 0 || s.Dropped[NotWritten] != 3 {
		t.Errorf("%+v", s)
	}
	if n := strings.Count(l.said.String(), "decision log cannot be written, its lines are dropped"); n != 1 {
		t.Errorf("said %d times:\n%s", n, l.said.String())
	}
}

// A line that a full disk has cut off does not take the next one with it.
func TestTornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	o, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	o.torn = true
	if err := o.write([]byte("{}\n")); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "\n{}\n" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestOpenSaysWhatToWrite(t *testing.T) {
	_, err := New(Options{To: t.TempDir(), Rate: 1})
	if err == nil || !strings.HasPrefix(err.Error(), "--decision-log: ") {
		t.Error(err)
	}
}

func BenchmarkWatch(b *testing.B) {
	for _, bm := range []struct {
		name   string
		sample float64
		values Values
	}{
		{"none", 0, Hashed},
		{"sample=0.01", 0.01, Hashed},
		{"sample=1/hash", 1, Hashed},
		{"sample=1/plain", 1, Plain},
	} {
		b.Run(bm.name, func(b *testing.B) {
			l := start(b, func(o *Options) { o.To, o.Sample, o.Values = os.DevNull, bm.sample, bm.values })
			r := requestOf(l.Decider, "none=10.0.0.1", "secret=x")
			r.Descriptors[1].Cost = 0
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Decide(context.Background(), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("off", func(b *testing.B) {
		d := service(b)
		r := requestOf(d, "none=10.0.0.1", "secret=x")
		r.Descriptors[1].Cost = 0
		b.ReportAllocs()
		for b.Loop() {
			if _, err := d.Decide(context.Background(), r); err != nil {
				b.Fatal(err)
			}
		}
	})
}
