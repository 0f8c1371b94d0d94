package boosts_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/boosts"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/internal/test/storetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

func openRedis(t *testing.T, url string) *boosts.Redis {
	t.Helper()
	return boosts.NewRedis(storetest.Connect(t, store.RedisOptions{URL: url}))
}

// two boards on one Redis, of which both follow.
func two(t *testing.T, server *redistest.Server) (a, b *boosts.Board, logs [2]*logged) {
	t.Helper()
	set := compile(t, rules)
	a, logs[0], _ = board(t, set, openRedis(t, server.URL()))
	b, logs[1], _ = board(t, set, openRedis(t, server.URL()))
	t.Cleanup(run(t, a))
	t.Cleanup(run(t, b))
	return a, b, logs
}

// soon waits until a board has so many boosts in force.
func soon(t *testing.T, b *boosts.Board, want int) {
	t.Helper()
	redistest.Await(t, func() error {
		if n, _ := b.InForce(); n != want {
			return fmt.Errorf("%d boosts in force, want %d", n, want)
		}
		return nil
	})
}

func TestBoostsAreShared(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "yes")
	a, b, logs := two(t, server)
	made := add(t, a, request(nil))
	soon(t, a, 1)
	soon(t, b, 1)
	if left, _ := redistest.Do(t, server, "pttl", "weir:1:boosts").(int64); left < time.Hour.Milliseconds() ||
		left > 62*time.Minute.Milliseconds() {
		t.Errorf("the boosts are kept for %d ms, want a little longer than an hour", left)
	}
	short := add(t, b, request(func(in *adminapi.BoostRequest) { in.Rule, in.For, in.Factor = "one", "2s", 7 }))
	soon(t, a, 2)
	soon(t, a, 1) // it has ended, by itself
	soon(t, b, 1)
	if _, err := a.Remove(t.Context(), short.ID); !errors.Is(err, boosts.ErrNotFound) {
		t.Errorf("Remove of what has ended: %v", err)
	}

	// While Redis is away, what is known stays, and nothing else can be made.
	server.Stop()
	redistest.Await(t, func() error {
		if b.Away() == nil {
			return errors.New("that Redis is away is not seen")
		}
		return nil
	})
	_, err := a.Add(t.Context(), request(nil))
	if !errors.Is(err, limiter.ErrUnavailable) || !strings.Contains(err.Error(), "the boosts in redis://") {
		t.Errorf("Add without Redis: %v", err)
	}
	if _, err := a.Remove(t.Context(), made.ID); !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("Remove without Redis: %v", err)
	}
	soon(t, b, 1)
	server.Restart()
	redistest.Await(t, b.Away)
	soon(t, b, 1)
	if n := logs[1].count("boosts cannot be read, those that are known stay until they end"); n != 1 {
		t.Errorf("that Redis is away is logged %d times", n)
	}

	redistest.Await(t, func() error { _, err := b.Remove(t.Context(), made.ID); return err })
	soon(t, a, 0)
	if n, _ := redistest.Do(t, server, "exists", "weir:1:boosts").(int64); n != 0 {
		t.Error("the key is there without boosts")
	}
	if begin, end := logs[0].count("boost begins"), logs[0].count("boost ends"); begin != 2 || end != 2 {
		t.Errorf("%d begins and %d ends logged", begin, end)
	}
}

// Boosts that Weir did not write cost no more memory than its own may: those that are known stay.
func TestBoostsOfOthersAreBounded(t *testing.T) {
	server := redistest.Start(t)
	a, _, logs := two(t, server)
	add(t, a, request(nil))
	soon(t, a, 1)
	r := openRedis(t, server.URL())
	for _, tt := range []struct{ text, want string }{
		{"1\n[" + strings.Repeat("{},", 1<<20) + "{}]", "it has 3145734 bytes, the most that is kept is 1048576"},
		{strings.Repeat("1", 2<<20) + "\n[]", "it has 2097155 bytes"},
		{"1\n[" + strings.Repeat("{},", boosts.Max) + "{}]", "it has 1001 boosts, the most that is kept is 1000"},
	} {
		redistest.Do(t, server, "set", "weir:1:boosts", tt.text)
		_, _, _, err := r.Read(t.Context(), "?")
		if err == nil || !strings.Contains(err.Error(), tt.want) ||
			!strings.Contains(err.Error(), "weir:1:boosts is not what weir wrote") {
			t.Errorf("%.20q: %v", tt.text, err)
		}
	}
	redistest.Do(t, server, "publish", "weir:1:boosts", "")
	redistest.Await(t, func() error {
		if logs[0].count("boosts cannot be read, those that are known stay until they end") == 0 {
			return errors.New("it is not logged")
		}
		return nil
	})
	soon(t, a, 1)
}

// Changes that come at the same time are all made.
func TestBoostsChangeTogether(t *testing.T) {
	server := redistest.Start(t)
	a, b, _ := two(t, server)
	var wait sync.WaitGroup
	for i := range 10 {
		wait.Go(func() {
			if _, err := []*boosts.Board{a, b}[i%2].Add(t.Context(), request(nil)); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	for _, board := range []*boosts.Board{a, b} {
		redistest.Await(t, func() error {
			if n := len(board.List()); n != 10 {
				return fmt.Errorf("%d boosts, want 10", n)
			}
			return nil
		})
	}
}

func TestBoostsAreBounded(t *testing.T) {
	server := redistest.Start(t)
	a, _, _ := two(t, server)
	r := openRedis(t, server.URL())
	many := make([]adminapi.Boost, boosts.Max)
	for i := range many {
		many[i] = adminapi.Boost{
			ID: strconv.Itoa(i), Domain: "shop", Rule: "one", Factor: 3,
			ExpiresAt: time.Now().Add(time.Hour),
		}
	}
	fill := func() error {
		return r.Change(t.Context(), func([]adminapi.Boost) ([]adminapi.Boost, error) { return many, nil })
	}
	if err := fill(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Add(t.Context(), request(nil)); !errors.Is(err, boosts.ErrFull) {
		t.Errorf("one more than the most: %v", err)
	}
	many[0].ExpiresAt = time.Now().Add(-time.Second)
	many[1].Reason = strings.Repeat("x", 2<<20)
	if err := fill(); err == nil || !strings.Contains(err.Error(), "the most that is kept is 1048576; remove some") {
		t.Errorf("too many bytes: %v", err)
	}
	many[1].Reason = ""
	if err := fill(); err != nil {
		t.Fatal(err)
	}
	add(t, a, request(nil)) // in the place of the one that has ended
}

// The rights that docs/operate/redis.md gives a process are enough, and without the right to the key the error says so.
func TestBoostsLeastPrivilege(t *testing.T) {
	server := redistest.Start(t)
	const commands = "+evalsha +eval +set +get +mget +del +time +publish +subscribe +ping +select +client|setname"
	user := func(name, keys string) string {
		t.Helper()
		acl := []any{"acl", "setuser", name, "on", ">s3cret", "&weir:1:*"}
		for word := range strings.FieldsSeq(keys + " " + commands) {
			acl = append(acl, word)
		}
		redistest.Do(t, server, acl...)
		return strings.Replace(server.URL(), "://", "://"+name+":s3cret@", 1)
	}
	set := compile(t, rules)
	a, _, _ := board(t, set, openRedis(t, user("all", "~weir:*")))
	t.Cleanup(run(t, a))
	b, _, _ := board(t, set, openRedis(t, user("few", "%R~weir:1:rules ~weir:1:*|* ~weir:1:ping ~weir:1:boosts")))
	t.Cleanup(run(t, b))
	add(t, b, request(nil))
	soon(t, a, 1)
	made := add(t, a, request(func(in *adminapi.BoostRequest) { in.Rule = "one" }))
	soon(t, b, 2)
	if _, err := b.Remove(t.Context(), made.ID); err != nil {
		t.Error(err)
	}
	none, log, _ := board(t, set, openRedis(t, user("none", "~weir:1:*|*")))
	t.Cleanup(run(t, none))
	redistest.Await(t, func() error {
		if none.Away() == nil || log.count("boosts cannot be read") == 0 {
			return errors.New("that the key may not be read is not told")
		}
		return nil
	})
	if _, err := none.Add(t.Context(), request(nil)); err == nil || !strings.Contains(err.Error(), "NOPERM") ||
		strings.Contains(err.Error(), "s3cret") {
		t.Errorf("without the right to the key: %v", err)
	}
}

// What weir did not write is an error that says what to do, and changes nothing.
func TestForeignBoosts(t *testing.T) {
	server := redistest.Start(t)
	redistest.Do(t, server, "set", "weir:1:boosts", "1\nhello")
	a, _, log := two(t, server)
	redistest.Await(t, func() error {
		if log[0].count("weir:1:boosts is not what weir wrote") == 0 {
			return errors.New("it is not logged")
		}
		return nil
	})
	if _, err := a.Add(t.Context(), request(nil)); err == nil ||
		!strings.Contains(err.Error(), "delete it to begin again") {
		t.Errorf("%v", err)
	}
}
