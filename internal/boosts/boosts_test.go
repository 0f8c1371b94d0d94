package boosts_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/boosts"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const rules = `
domain: shop
descriptors:
- key: client
  rate_limits:
  - {name: hour, requests_per_unit: 10, unit: hour}
  - {name: day, algorithm: funnel, requests_per_unit: 100, unit: day}
- {key: free, rate_limit: {unlimited: true}}
- {key: one, rate_limit: {requests_per_unit: 1, unit: hour}}
- {key: secret, hash_values: true, rate_limit: {requests_per_unit: 5, unit: hour}}
`

func compile(t *testing.T, yaml string) *descriptors.Set {
	t.Helper()
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(yaml)}})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// logged is what a board logs.
type logged struct{ proctest.Buffer }

func (l *logged) count(what string) int { return strings.Count(l.String(), what) }

// board has live rules. changes counts how often it told of a change.
func board(t *testing.T, set *descriptors.Set, store boosts.Store) (b *boosts.Board, log *logged, changes *int) {
	t.Helper()
	log, changes = &logged{}, new(int)
	b = boosts.New(boosts.Options{
		Store: store, Changed: func() { *changes++ },
		Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	b.Live(set)
	return b, log, changes
}

func request(change func(*adminapi.BoostRequest)) *adminapi.BoostRequest {
	in := &adminapi.BoostRequest{Domain: "shop", Rule: "client", Factor: 2, For: "1h", Reason: "sale", Author: "ann"}
	if change != nil {
		change(in)
	}
	return in
}

func add(t *testing.T, b *boosts.Board, in *adminapi.BoostRequest) *adminapi.BoostStatus {
	t.Helper()
	made, err := b.Add(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// numbers are what the limits of client count by for a counter of ann, and one of bob.
func numbers(b *boosts.Board, set *descriptors.Set) (all []int64) {
	for _, who := range []string{"ann", "bob"} {
		for _, l := range set.Domain("shop").Rule("client").Limits {
			key := string(l.AppendKey(nil, []descriptors.Entry{{Key: "client", Value: who}}))
			by := l
			if limits := b.Limits(); limits != nil {
				by = limits.Limit(l, key)
			}
			if _, shown := b.Of(l, key); shown != by {
				all = append(all, -1) // Of says another
			}
			all = append(all, by.Policy.Limit())
		}
	}
	return all
}

func expect(t *testing.T, step string, got []int64, want ...int64) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: limits of ann and of bob (-want +got)\n%s", step, diff)
	}
}

// A boost begins at once, the newest goes before, one of a counter before those of its rule, and each ends by itself.
func TestBoostsBeginAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := compile(t, rules)
		b, log, changes := board(t, set, nil)
		stop := run(t, b)
		defer stop()
		if b.Limits() != nil {
			t.Error("there is something to look up without boosts")
		}
		first := add(t, b, request(nil))
		expect(t, "rule", numbers(b, set), 20, 200, 20, 200)
		time.Sleep(time.Minute)
		half := add(t, b, request(func(in *adminapi.BoostRequest) { in.Factor, in.For = 0.5, "10m3s" }))
		expect(t, "a newer one", numbers(b, set), 5, 50, 5, 50)
		ann := add(t, b, request(func(in *adminapi.BoostRequest) {
			in.Rule, in.Descriptor, in.Factor, in.For = "", "client=ann", 3,
				"20m"
		}))
		expect(t, "a counter", numbers(b, set), 30, 300, 5, 50)
		if want := []string{"fixed_window:hour|shop|client=ann", "funnel:day|shop|client=ann"}; !slices.Equal(ann.Keys,
			want) {
			t.Errorf("keys %q, want %q", ann.Keys, want)
		}
		want := map[string]string{first.ID: "a newer boost of the same rule or counter is in force", half.ID: "", ann.ID: ""}
		got := map[string]string{}
		for _, s := range b.List() {
			if got[s.ID] = s.Problem; s.InForce == (s.Problem != "") {
				t.Errorf("in force is %t with the problem %q", s.InForce, s.Problem)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("problems (-want +got)\n%s", diff)
		}
		if n, reachable := b.InForce(); n != 2 || !reachable {
			t.Errorf("%d in force, reachable %t", n, reachable)
		}
		if of, _ := b.Of(set.Domain("shop").Rule("client").Limits[0], ann.Keys[0]); of == nil || of.ID != ann.ID {
			t.Errorf("the counter's boost is %+v", of)
		}

		time.Sleep(10*time.Minute + 3*time.Second + time.Millisecond)
		synctest.Wait()
		expect(t, "the newer one has ended", numbers(b, set), 30, 300, 20, 200)
		if removed, err := b.Remove(t.Context(), first.ID); err != nil || removed.ID != first.ID {
			t.Errorf("Remove: %+v, %v", removed, err)
		}
		expect(t, "the rule's is removed", numbers(b, set), 30, 300, 10, 100)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		expect(t, "the counter's has ended", numbers(b, set), 10, 100, 10, 100)
		if b.Limits() != nil || len(b.List()) != 0 {
			t.Error("something is left")
		}
		if begin, end := log.count("boost begins"), log.count("boost ends"); begin != 3 || end != 3 || *changes != 6 {
			t.Errorf("%d begins and %d ends logged, %d changes", begin, end, *changes)
		}
		if _, err := b.Remove(t.Context(), first.ID); !errors.Is(err, boosts.ErrNotFound) ||
			!strings.Contains(err.Error(), "weir boost list shows them") {
			t.Errorf("Remove of what has ended: %v", err)
		}
	})
}

// run follows until it is stopped.
func run(t *testing.T, b *boosts.Board) (stop func()) {
	t.Helper()
	ctx, cancel := contextOf(t)
	var wait sync.WaitGroup
	wait.Go(func() { b.Run(ctx) })
	return func() { cancel(); wait.Wait() }
}

// A boost outlives a reload by its rule's path: before and after the swap there is no moment without it.
func TestBoostsOutliveReloads(t *testing.T) {
	before := compile(t, rules)
	b, _, _ := board(t, before, nil)
	rule := add(t, b, request(nil))
	counter := add(t, b, request(func(in *adminapi.BoostRequest) { in.Rule, in.Descriptor, in.Factor = "", "client=ann", 3 }))

	after := compile(t, strings.Replace(strings.Replace(rules, "requests_per_unit: 10,", "requests_per_unit: 7,", 1),
		"algorithm: funnel", "algorithm: sliding_log", 1))
	b.Prepare(after)
	expect(t, "before the swap, old rules", numbers(b, before), 30, 300, 20, 200)
	expect(t, "before the swap, new rules", numbers(b, after), 21, 200, 14, 200)
	b.Live(after)
	expect(t, "after the swap", numbers(b, after), 21, 200, 14, 200)
	list := b.List()
	if list[0].ID != rule.ID || !list[0].InForce || list[0].Problem != "" ||
		list[1].ID != counter.ID || !list[1].InForce ||
		list[1].Problem != `limit "day" counts otherwise than when the boost was made` {
		t.Errorf("%+v", list)
	}

	b.Live(compile(t,
		"domain: shop\ndescriptors: [{key: client}, {key: a, rate_limit: {requests_per_unit: 1, unit: day}}]"))
	if list := b.List(); list[0].InForce || list[0].Problem != "the rule has no limit" {
		t.Errorf("a rule without limits: %+v", list[0])
	}
	b.Live(compile(t, "domain: other\ndescriptors: [{key: a}]"))
	if list := b.List(); list[0].InForce || list[0].Problem != "the live rules have no such rule" || b.Limits() != nil {
		t.Errorf("without the rule: %+v", list[0])
	}
	b.Live(nil)
	if list := b.List(); len(list) != 2 || list[0].InForce {
		t.Errorf("without rules: %+v", list)
	}
	b.Live(before)
	expect(t, "the rule is back", numbers(b, before), 30, 300, 20, 200)

	b.Live(compile(t, strings.Replace(rules, "requests_per_unit: 10,", "requests_per_unit: 0,", 1)))
	if list := b.List(); !list[0].InForce || !strings.Contains(list[0].Problem, "it lets nothing pass") ||
		len(list[0].Limits) != 1 {
		t.Errorf("with a limit that no factor changes: %+v", list[0])
	}
}

func TestRefusedBoosts(t *testing.T) {
	b, _, changes := board(t, compile(t, rules), nil)
	for name, tc := range map[string]struct {
		change func(in *adminapi.BoostRequest)
		want   string
	}{
		"no domain": {func(in *adminapi.BoostRequest) { in.Domain = "" }, "domain: is missing"},
		"unknown domain": {
			func(in *adminapi.BoostRequest) { in.Domain = "shp" },
			`domain: there is no "shp" (not found); there is "shop"`,
		},
		"both":    {func(in *adminapi.BoostRequest) { in.Descriptor = "client=a" }, "rule, descriptor: give one of the two"},
		"neither": {func(in *adminapi.BoostRequest) { in.Rule = "" }, "rule, descriptor: give one of the two"},
		"unknown rule": {
			func(in *adminapi.BoostRequest) { in.Rule = "clint" },
			`rule: domain "shop" has no rule "clint" (not found); it has "client", "free", "one", "secret"`,
		},
		"no match":   {func(in *adminapi.BoostRequest) { in.Rule, in.Descriptor = "", "path=/" }, "weir explain says why"},
		"descriptor": {func(in *adminapi.BoostRequest) { in.Rule, in.Descriptor = "", "=x" }, "descriptor: entry 1 has no key"},
		"no limit":   {func(in *adminapi.BoostRequest) { in.Rule = "free" }, `rule "free" (rules.yaml:8) has no limit to boost`},
		"zero": {func(in *adminapi.BoostRequest) { in.Factor = 0 }, "factor: must be above 0 (at least 0.001) and at most " +
			"1000, got 0; 2 doubles a limit"},
		"negative": {func(in *adminapi.BoostRequest) { in.Factor = -1 }, "factor: must be above 0"},
		"becomes 0": {
			func(in *adminapi.BoostRequest) { in.Rule, in.Factor = "one", 0.5 },
			"requests_per_unit would be 0; it must be between 1",
		},
		"no change": {
			func(in *adminapi.BoostRequest) { in.Rule, in.Factor = "one", 1.5 },
			`factor: 1.5 changes no limit of rule "one", whose numbers are rounded down`,
		},
		"duration": {func(in *adminapi.BoostRequest) { in.For = "1 hour" }, `for: "1 hour" is not a duration: write it like 90s`},
		"too long": {func(in *adminapi.BoostRequest) { in.For = "721h" }, "for: must be between 1s and 168h0m0s (7d), got " +
			"721h0m0s"},
		"too short": {func(in *adminapi.BoostRequest) { in.For = "1ms" }, "for: must be between 1s"},
		"no reason": {func(in *adminapi.BoostRequest) { in.Reason = "" }, "reason: must have 1 to 500 bytes"},
		"a control": {
			func(in *adminapi.BoostRequest) { in.Reason = "sale\u009b2J" },
			"reason: must have 1 to 500 bytes of text that can be seen",
		},
		"turned": {func(in *adminapi.BoostRequest) { in.Reason = "a\u202eb" }, "reason: must have 1 to 500 bytes of text " +
			"that can be seen"},
		"no text": {func(in *adminapi.BoostRequest) { in.Reason = "a\xffb" }, "reason: must have 1 to 500 bytes of text that " +
			"can be seen"},
		"too much": {func(in *adminapi.BoostRequest) { in.Factor = 1001 }, "at most 1000, got 1001"},
		"a line": {func(in *adminapi.BoostRequest) { in.Author = "ann\nbob" }, "author: must have 1 to 500 bytes of text " +
			"that can be seen"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.Add(t.Context(), request(tc.change))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want an error with %q", err, tc.want)
			}
		})
	}
	if *changes != 0 || len(b.List()) != 0 {
		t.Errorf("%d changes, %d boosts", *changes, len(b.List()))
	}
}

// One author does not fill all places.
func TestBoostsOfOneAuthor(t *testing.T) {
	b, _, _ := board(t, compile(t, rules), nil)
	for range boosts.MaxOfAuthor {
		add(t, b, request(nil))
	}
	if _, err := b.Add(t.Context(), request(nil)); !errors.Is(err, boosts.ErrFull) {
		t.Errorf("one more of this author: %v, want ErrFull", err)
	}
	add(t, b, request(func(in *adminapi.BoostRequest) { in.Author = "another" }))
}

// Values that the rules hash are not in a boost.
func TestBoostsHideHashedValues(t *testing.T) {
	b, _, _ := board(t, compile(t, rules), nil)
	made := add(t, b, request(func(in *adminapi.BoostRequest) { in.Rule, in.Descriptor = "", "secret=hunter2" }))
	if text := fmt.Sprintf("%+v", made); strings.Contains(text, "hunter2") || len(made.Keys) != 1 {
		t.Errorf("%s", text)
	}
}

// flood is a store whose boosts are others at each read, and that hints as fast as it can.
type flood struct{ reads int }

func (f *flood) Read(context.Context, string) (all []adminapi.Boost, revision string, same bool, err error) {
	f.reads++
	for i := range boosts.Max {
		all = append(all, adminapi.Boost{
			ID: fmt.Sprintf("%d-%d", f.reads, i), Domain: "shop", Rule: "one", Factor: 3,
			ExpiresAt: time.Now().Add(time.Hour),
		})
	}
	return all, strconv.Itoa(f.reads), false, nil
}

func (*flood) Change(context.Context, func([]adminapi.Boost) ([]adminapi.Boost, error)) error {
	return nil
}

func (*flood) Watch(ctx context.Context, hints chan<- struct{}) {
	for ctx.Err() == nil {
		reload.Hint(hints)
		time.Sleep(time.Millisecond)
	}
}

// However fast boosts change in Redis, and however many, reads and lines of the log are few.
func TestChangesInFloods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &flood{}
		b, log, _ := board(t, compile(t, rules), store)
		stop := run(t, b)
		time.Sleep(10 * time.Second)
		stop()
		if n := len(b.List()); store.reads > 60 || n != boosts.Max {
			t.Errorf("%d reads in 10 s, %d boosts", store.reads, n)
		}
		if lines := log.count("\n"); lines > 50*store.reads || log.count(`begins: not all are shown" boosts=1000`) == 0 {
			t.Errorf("%d lines of %d reads:\n%.1000s", lines, store.reads, log.String())
		}
	})
}

// away is a store that cannot be read.
type away struct{ boosts.Store }

func (away) Read(context.Context, string) ([]adminapi.Boost, string, bool, error) {
	return nil, "", false, errors.New("no right to read")
}

// That boosts cannot be read is logged once, unless the whole server is away, which has been logged.
func TestUnreadableBoostsAreLogged(t *testing.T) {
	var log logged
	reachable := false
	b := boosts.New(boosts.Options{
		Store: away{}, Reachable: func(context.Context) bool { return reachable },
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	for i, want := range []int{0, 1, 1} {
		reachable = i > 0
		if b.First(t.Context()); log.count("boosts cannot be read") != want || b.Away() == nil {
			t.Errorf("read %d, reachable %t: %s", i, reachable, log.String())
		}
	}
}
