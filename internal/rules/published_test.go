package rules_test

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

const patience = proctest.Patience

func open(t *testing.T, server *redistest.Server) *rules.Published {
	t.Helper()
	return openURL(t, server.URL(), 0)
}

// openURL opens the sets on a client with a timeout, by default that of requests, which a serving process has.
func openURL(t *testing.T, url string, timeout time.Duration) *rules.Published {
	t.Helper()
	r, err := store.Connect(t.Context(), url, redisstore.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return rules.NewPublished(r)
}

// client connects to the server without the package.
func client(t *testing.T, server *redistest.Server) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// set is a set of one file.
func set(t *testing.T, text string) *rules.PublishedSet {
	t.Helper()
	s, err := rules.NewPublishedSet([]reload.File{{Name: "shop.yaml", Data: []byte(text)}}, "ann",
		time.Unix(1_800_000_000, 5))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// publish publishes the text, whatever the current set is.
func publish(t *testing.T, sets *rules.Published, text string) *rules.PublishedSet {
	t.Helper()
	saw, err := sets.Current(t.Context())
	if err != nil && !errors.Is(err, rules.ErrNothingPublished) {
		t.Fatal(err)
	}
	s := set(t, text)
	if err := sets.Publish(t.Context(), s, saw.PublishedInfo); err != nil {
		t.Fatal(err)
	}
	return s
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want one with %q", err, text)
	}
}

func TestPublish(t *testing.T) {
	server := redistest.Start(t)
	sets := open(t, server)
	if _, err := sets.Current(t.Context()); !errors.Is(err, rules.ErrNothingPublished) {
		t.Fatalf("error %v, want ErrNothing", err)
	}
	for version, text := range []string{1: "a < b & \"ü\"\n", 2: "b"} {
		if version == 0 {
			continue
		}
		want := publish(t, sets, text)
		got, err := sets.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" || got.Version != uint64(version) {
			t.Errorf("version %d, want %d (-published +read):\n%s", got.Version, version, diff)
		}
	}
	if n := client(t, server).HLen(t.Context(), "weir:1:rules").Val(); n != 3 {
		t.Errorf("%d fields: an old version is not removed", n)
	}
}

// If many publish at once after reading the same version, one wins, and the error of the others names it.
func TestPublishersAtOnce(t *testing.T) {
	sets := openURL(t, redistest.Start(t).URL(), patience)
	publish(t, sets, "first")
	for range 10 {
		saw, err := sets.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		errs, won := make([]error, 8), make([]*rules.PublishedSet, 8)
		for i := range errs {
			won[i] = set(t, fmt.Sprint(saw.Version, " by ", i))
			wg.Go(func() { errs[i] = sets.Publish(context.Background(), won[i], saw.PublishedInfo) })
		}
		wg.Wait()
		winners := 0
		for i, err := range errs {
			if err == nil {
				winners++
				if now, err := sets.Current(t.Context()); err != nil || now.Hash != won[i].Hash || now.Version != saw.Version+1 {
					t.Errorf("in force is version %d of hash %s (%v), want the winner's", now.Version, now.Hash, err)
				}
				continue
			}
			wantError(t, err, fmt.Sprintf("version %d by ann is in force, no longer version %d", saw.Version+1, saw.Version))
		}
		if winners != 1 {
			t.Errorf("%d publishers won, want 1", winners)
		}
	}
}

func TestNewSetRefuses(t *testing.T) {
	file := func(data string) []reload.File { return []reload.File{{Name: "a.yaml", Data: []byte(data)}} }
	for _, tt := range []struct {
		name, author, want string
		files              []reload.File
	}{
		{"no files", "ann", "there are no files", nil},
		{
			"too large", "ann", "at most 8388608 (8 MiB) can be published",
			append(file(strings.Repeat("x", rules.MaxPublishedBytes)), file("x")...),
		},
		{
			"too many", "ann", "there are 10001 files, at most 10000",
			make([]reload.File, rules.MaxPublishedFiles+1),
		},
		{"no text", "ann", "a.yaml: is not UTF-8", file("\xff")},
		{"no author", "", "the author must have 1 to 200 bytes", file("x")},
		{"two lines", "ann\nbob", "no control characters", file("x")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := rules.NewPublishedSet(tt.files, tt.author, time.Now())
			wantError(t, err, tt.want)
		})
	}
	noise := make([]byte, rules.MaxPublishedStored) // hexadecimal digits carry half a byte each
	for i, rng := 0, rand.New(rand.NewPCG(1, 2)); i < len(noise); i++ {
		noise[i] = byte(rng.IntN(256))
	}
	dense, err := rules.NewPublishedSet(file(hex.EncodeToString(noise)), "ann", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, open(t, redistest.Start(t)).Publish(t.Context(), dense, rules.PublishedInfo{}),
		"bytes compressed, at most 1048576 (1 MiB)")
	largest, err := rules.NewPublishedSet(file(strings.Repeat("x", rules.MaxPublishedBytes)), "ann", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	sets := open(t, redistest.Start(t))
	if err := sets.Publish(t.Context(), largest, rules.PublishedInfo{}); err != nil {
		t.Fatal(err)
	}
	if got, err := sets.Current(t.Context()); err != nil || got.Hash != largest.Hash {
		t.Errorf("the largest set is not read: %v", err)
	}
}

// follow returns a Follower and its reports of outages.
func follow(t *testing.T, server *redistest.Server) (f *rules.Follower, told func() []error) {
	t.Helper()
	var mu sync.Mutex
	var all []error
	f = open(t, server).Follow(func(err error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, err)
	})
	return f, func() []error {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

func TestFollowerKeepsTheLastSet(t *testing.T) {
	server := redistest.Start(t)
	sets := open(t, server)
	f, told := follow(t, server)
	_, err := f.Read(t.Context())
	wantError(t, err, "no rules are published; publish some with weir publish")

	publish(t, sets, "a")
	first, err := f.Read(t.Context())
	if err != nil || first.Files[0].Name != "store:shop.yaml@1" || string(first.Files[0].Data) != "a" {
		t.Fatalf("%v, %v", first, err)
	}
	server.Kill()
	for range 2 {
		if got, err := f.Read(t.Context()); err != nil || got.Hash != first.Hash {
			t.Errorf("without Redis: %v, %v, want the last set", got, err)
		}
	}
	if info, away := f.Last(); info.Version != 1 || away == nil || len(told()) != 1 || told()[0] == nil {
		t.Errorf("last %v, away %v, told %v", info, away, told())
	}
	server.Restart() // without its data
	for deadline := time.Now().Add(patience); err == nil && time.Now().Before(deadline); {
		_, err = f.Read(t.Context()) // the client waits up to a second before it tries again
	}
	wantError(t, err, "no rules are published")
	publish(t, sets, "b") // again version 1
	if got, err := f.Read(t.Context()); err != nil || string(got.Files[0].Data) != "b" {
		t.Errorf("%v, %v, want what is published now", got, err)
	}
	if _, away := f.Last(); away != nil || len(told()) != 2 || told()[1] != nil {
		t.Errorf("away %v, told %v", away, told())
	}
	_, err = func() (*rules.Follower, error) {
		f, _ := follow(t, server)
		server.Kill()
		_, err := f.Read(t.Context())
		return f, err
	}()
	wantError(t, err, "--rules store: read the rules in redis://")
}

func zipped(t *testing.T, text string) string {
	t.Helper()
	var out strings.Builder
	zip := gzip.NewWriter(&out)
	if _, err := zip.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Damaged rules are an error, never a set.
func TestDamaged(t *testing.T) {
	server := redistest.Start(t)
	sets, c := open(t, server), client(t, server)
	for _, tt := range []struct{ field, value, want string }{
		{"files", zipped(t, `[{"name":"shop.yaml","text":"other"}]`), "the files do not match the hash"},
		{"files", zipped(t, `[{"name":`), "unexpected EOF"},
		{"files", zipped(t, `{}`), "json: cannot unmarshal object"},
		{
			"files", zipped(t, "["+strings.Repeat("{},", rules.MaxPublishedFiles)+"{}]"),
			"the set has more than 8388608 bytes or 10000 files",
		},
		{
			"files", zipped(t, `[{"text":"`+strings.Repeat("x", rules.MaxPublishedBytes)+`"},{"text":"x"}]`),
			"the set has more than 8388608 bytes or 10000 files",
		},
		{"files", "text", "unexpected EOF"},
		{"info", `{`, "unexpected end of JSON input"},
		{"current", "one", `current is "one": the files do not match the hash`},
		{"current", "1 abc", `current is "1 abc": the files do not match the hash`},
	} {
		t.Run(tt.field+" "+tt.want, func(t *testing.T) {
			if err := c.FlushDB(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			publish(t, sets, "a")
			f, _ := follow(t, server)
			if _, err := f.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := c.HSet(t.Context(), "weir:1:rules", tt.field, tt.value).Err(); err != nil {
				t.Fatal(err)
			}
			_, err := sets.Current(t.Context())
			wantError(t, err, tt.want)
			if !errors.Is(err, rules.ErrDamaged) {
				t.Errorf("the error %v does not say that a new set may replace it", err)
			}
			if tt.field == "current" { // else nothing says that it changed
				_, err = f.Read(t.Context())
				wantError(t, err, tt.want)
			}
		})
	}
}

// A publication sends a hint at once, even after a restart of Redis has closed the connection.
func TestWatch(t *testing.T) {
	server := redistest.Start(t)
	sets := open(t, server)
	f, _ := follow(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 1), make(chan struct{})
	go func() { defer close(ended); f.Watch(ctx, changed) }()
	hint := func(what string) {
		t.Helper()
		casetest.Receive(t, changed, "hint "+what)
	}
	hint("of the subscription")
	publish(t, sets, "a")
	hint("of a publication")
	server.Restart()
	hint("of the new subscription")
	publish(t, sets, "b")
	hint("of a publication after the restart")
	cancel()
	casetest.Receive(t, ended, "end of Watch")
}

// Watch sends hints while Redis is unreachable.
func TestWatchWithoutRedis(t *testing.T) {
	f := openURL(t, "redis://127.0.0.1:1", 0).Follow(func(error) {})
	if _, err := f.Read(t.Context()); err == nil {
		t.Fatal("rules were read")
	}
	changed := make(chan struct{})
	go f.Watch(t.Context(), changed)
	for range 2 {
		casetest.Receive(t, changed, "hint without Redis")
	}
}

// A process can follow rules without the right to change them. docs/operate/redis.md names the same rights.
func TestFollowerMayOnlyRead(t *testing.T) {
	server := redistest.Start(t)
	publish(t, open(t, server), "a")
	err := client(t, server).Do(t.Context(), "ACL", "SETUSER", "sidecar", "on", ">secret", "+@all", "%R~weir:1:rules",
		"~weir:1:*|*",
		"~weir:1:ping", "&weir:*").Err()
	if err != nil {
		t.Fatal(err)
	}
	sets := openURL(t, strings.Replace(server.URL(), "//", "//sidecar:secret@", 1), 0)
	saw, err := sets.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, sets.Publish(t.Context(), set(t, "b"), saw.PublishedInfo), "publish in redis://")
	if now, err := sets.Current(t.Context()); err != nil || now.Version != 1 {
		t.Errorf("version %d, %v: who may only read has published", now.Version, err)
	}
	if err := counter(t, server); err != nil {
		t.Error(err)
	}
}

// counter counts a hit as that user.
func counter(t *testing.T, server *redistest.Server) error {
	t.Helper()
	client := redistest.Client(t, strings.Replace(server.URL(), "//", "//sidecar:secret@", 1), patience)
	store, err := redisstore.New(client, redisstore.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var out [1]limiter.Decision
	return errors.Join(store.Ping(t.Context()), store.Take(t.Context(),
		[]limiter.Hit{{Key: "funnel|shop|k=v", Policy: p, N: 1}}, out[:]))
}

// Publishing and following work in a cluster.
func TestCluster(t *testing.T) {
	url := redistest.StartCluster(t, 3).URL()
	sets := openURL(t, url, 0)
	f := sets.Follow(func(err error) { t.Error(err) })
	ctx, cancel := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 1), make(chan struct{})
	go func() { defer close(ended); f.Watch(ctx, changed) }()
	for i, text := range []string{"", "a", "b"} {
		if i > 0 {
			publish(t, sets, text)
		}
		for deadline := time.Now().Add(patience); ; { // the subscription's hint is the first
			casetest.Receive(t, changed, fmt.Sprint("hint of version ", i))
			if i == 0 {
				break
			}
			if got, err := f.Read(t.Context()); err == nil && string(got.Files[0].Data) == text {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("%v, %v, want version %d", got, err, i)
			}
		}
	}
	cancel()
	<-ended
}
