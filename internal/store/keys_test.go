package store_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// scene is a server with keys, and Keys of the prefix "a*:", which as a pattern would be like others.
func scene(t *testing.T, names ...string) (*store.Keys, *redis.Client) {
	t.Helper()
	server := redistest.Start(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = c.Close() })
	_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, name := range names {
			p.Set(t.Context(), name, "state", time.Hour)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k, err := store.OpenKeys(server.URL(), "a*:")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k, c
}

// names are the distinct keys that a walk visits.
func names(t *testing.T, k *store.Keys, format, match string) map[string]store.Key {
	t.Helper()
	found := map[string]store.Key{}
	err := k.Walk(t.Context(), format, match, true, func(_ context.Context, page []store.Key) error {
		for _, key := range page {
			found[key.Name] = key
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestWalk(t *testing.T) {
	k, c := scene(t, "a*:1:funnel|shop|k=v", "a*:1:ping", "a*:0:old", "a*:x:not ours", "ab:1:funnel|shop|k=v", "a*:12")
	if err := c.HSet(t.Context(), "a*:1:rules", "current", "1").Err(); err != nil {
		t.Fatal(err)
	}
	got := names(t, k, "*", "*")
	want := map[string]string{
		"a*:1:funnel|shop|k=v": "string", "a*:1:ping": "string", "a*:0:old": "string",
		"a*:1:rules": "hash",
	}
	types := map[string]string{}
	for name, key := range got {
		types[name] = key.Type
		if ends := key.TTL > 59*time.Minute && key.TTL <= time.Hour; ends == key.Published() ||
			(key.TTL == store.NoTTL) != key.Published() {
			t.Errorf("%s has the time to live %s", name, key.TTL)
		}
		if key.Bytes < 20 || key.Bytes > 300 {
			t.Errorf("%s has %d bytes", name, key.Bytes)
		}
	}
	if diff := cmp.Diff(want, types); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	if got := names(t, k, "1", "*|shop|*"); len(got) != 1 || got["a*:1:funnel|shop|k=v"].Rest != "funnel|shop|k=v" {
		t.Errorf("of one domain: %v", got)
	}
}

// A walk through many keys takes them page by page, and deletes only what it is to.
func TestDeleteMany(t *testing.T) {
	var all []string
	for i := range 5000 {
		all = append(all, fmt.Sprint("a*:1:funnel|shop|k=", i), fmt.Sprint("a*:1:funnel|other|k=", i))
	}
	k, c := scene(t, all...)
	deleted, pages := 0, 0
	err := k.Walk(t.Context(), "1", "*|shop|*", false, func(ctx context.Context, page []store.Key) error {
		pages++
		if len(page) > 1000 {
			t.Errorf("a page of %d keys", len(page))
		}
		n, err := k.Delete(ctx, page)
		deleted += n
		return err
	})
	if err != nil || deleted != 5000 || pages < 5 {
		t.Errorf("%d keys deleted in %d pages, %v", deleted, pages, err)
	}
	if left := c.DBSize(t.Context()).Val(); left != 5000 {
		t.Errorf("%d keys are left, want those of the other domain", left)
	}
}

// In a cluster the keys of all masters are visited, and deleted.
func TestCluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Masters[0].Addr()}, Protocol: 2})
	defer c.Close() //nolint:errcheck // only a test's
	for i := range 300 {
		if err := c.Set(t.Context(), fmt.Sprintf("a*:1:funnel|{shop|k=%d}", i), "state", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
	}
	k, err := store.OpenKeys(cluster.URL(), "a*:")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close() //nolint:errcheck // everything was answered
	if got := names(t, k, "1", "*shop|*"); len(got) != 300 {
		t.Errorf("%d keys, want 300", len(got))
	}
	deleted := 0
	err = k.Walk(t.Context(), "1", "*", false, func(ctx context.Context, page []store.Key) error {
		n, err := k.Delete(ctx, page)
		deleted += n
		return err
	})
	if err != nil || deleted != 300 || len(names(t, k, "1", "*")) != 0 {
		t.Errorf("%d keys deleted, %v", deleted, err)
	}
}

// Deleted counters are told to all processes, which may know of denials; keys of another format are nobody's here.
func TestDeleteIsTold(t *testing.T) {
	k, c := scene(t, "a*:1:funnel|shop|k=1", "a*:0:old")
	sub := c.Subscribe(t.Context(), "a*:1:refunds")
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := k.Walk(t.Context(), "*", "*", false, func(ctx context.Context, page []store.Key) error {
		_, err := k.Delete(ctx, page)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Publish(t.Context(), "a*:1:refunds", "the end").Err(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a*:1:funnel|shop|k=1", "the end"} {
		message, err := sub.ReceiveTimeout(t.Context(), 10*time.Second)
		if m, ok := message.(*redis.Message); err != nil || !ok || m.Payload != want {
			t.Fatalf("heard %v, %v; want %s", message, err, want)
		}
	}
}

// A deletion that fails in part is told for the keys that it has deleted.
func TestDeleteInPartIsTold(t *testing.T) {
	server := redistest.Start(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = admin.Close() })
	for _, name := range []string{"weir:1:funnel|mine|k=1", "weir:1:funnel|theirs|k=1", "weir:1:funnel|mine|k=2"} {
		if err := admin.Set(t.Context(), name, "state", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "operator", "reset", "on", ">secret", "~weir:1:funnel|mine|*",
		"allchannels", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	sub := admin.Subscribe(t.Context(), "weir:1:refunds")
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	k, err := store.OpenKeys(strings.Replace(server.URL(), "//", "//operator:secret@", 1), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	deleted := 0
	err = k.Walk(t.Context(), "1", "*", false, func(ctx context.Context, page []store.Key) error {
		n, err := k.Delete(ctx, page)
		deleted += n
		return err
	})
	if deleted != 2 || err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Fatalf("%d deleted, %v; want 2 and NOPERM", deleted, err)
	}
	told := map[string]bool{}
	for range 2 {
		message, err := sub.ReceiveTimeout(t.Context(), 10*time.Second)
		m, ok := message.(*redis.Message)
		if err != nil || !ok {
			t.Fatalf("heard %v, %v; told so far of %v", message, err, told)
		}
		told[m.Payload] = true
	}
	if diff := cmp.Diff(map[string]bool{"weir:1:funnel|mine|k=1": true, "weir:1:funnel|mine|k=2": true},
		told); diff != "" {
		t.Error(diff)
	}
}

// A deletion whose answer is lost is published: it may be done.
func TestDeleteWithoutAnAnswerIsPublished(t *testing.T) {
	k, c := scene(t, "a*:1:funnel|shop|k=1")
	sub := c.Subscribe(t.Context(), "a*:1:refunds")
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.Client.AddHook(redistest.Hook(func(cmds []redis.Cmder, send func() error) error {
		err := send()
		for _, cmd := range cmds {
			if unlink, ok := cmd.(*redis.IntCmd); ok && cmd.Name() == "unlink" {
				unlink.SetVal(0)
				unlink.SetErr(io.EOF)
				err = io.EOF
			}
		}
		return err
	}))
	n, err := k.Delete(t.Context(), []store.Key{{Name: "a*:1:funnel|shop|k=1"}})
	if n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d deleted, %v; want EOF", n, err)
	}
	message, err := sub.ReceiveTimeout(t.Context(), 10*time.Second)
	if m, ok := message.(*redis.Message); err != nil || !ok || m.Payload != "a*:1:funnel|shop|k=1" {
		t.Errorf("heard %v, %v; want the key", message, err)
	}
}

// These are the rights that docs/operate/redis.md names. Who may not tell of a deletion is told, and has deleted.
func TestRights(t *testing.T) {
	server := redistest.Start(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = admin.Close() })
	for _, tt := range []struct{ channel, want string }{{"&weir:1:refunds", ""}, {"resetchannels", "NOPERM"}} {
		err := errors.Join(
			admin.Set(t.Context(), "weir:1:funnel|shop|k=v", "state", time.Hour).Err(),
			admin.Do(t.Context(), "ACL", "SETUSER", "operator", "reset", "on", ">secret", "~weir:*", tt.channel,
				"+scan", "+type", "+pttl", "+memory|usage", "+unlink", "+publish").Err())
		if err != nil {
			t.Fatal(err)
		}
		k, err := store.OpenKeys(strings.Replace(server.URL(), "//", "//operator:secret@", 1), "")
		if err != nil {
			t.Fatal(err)
		}
		if got := names(t, k, "1", "*"); len(got) != 1 {
			t.Errorf("%d keys, want 1", len(got))
		}
		var deleted int
		err = k.Walk(t.Context(), "1", "*", true, func(ctx context.Context, page []store.Key) error {
			deleted, err = k.Delete(ctx, page)
			return err
		})
		if deleted != 1 || (err == nil) != (tt.want == "") || !strings.Contains(fmt.Sprint(err), tt.want) && tt.want != "" {
			t.Errorf("with %s: %d deleted, %v; want 1 and %q", tt.channel, deleted, err, tt.want)
		}
		_ = k.Close()
	}
}
