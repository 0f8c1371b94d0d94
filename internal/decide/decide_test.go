package decide

import (
	"math"
	"slices"
	"testing"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

func TestOptions(t *testing.T) {
	_, err := New(Options{})
	want := "decide: Options.Rules: must be set\ndecide: Options.Store: must be set"
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestSaturate(t *testing.T) {
	for in, want := range map[int64]uint32{
		-1: 0, 0: 0, 7: 7, math.MaxUint32: math.MaxUint32, math.MaxUint32 + 1: math.MaxUint32, math.MaxInt64: math.MaxUint32,
	} {
		if got := Saturate(in); got != want {
			t.Errorf("Saturate(%d) = %d, want %d", in, got, want)
		}
	}
}

func TestOutcomesHaveNames(t *testing.T) {
	for i, o := range Outcomes() {
		if int(o) != i || o.String() == "" {
			t.Errorf("Outcomes()[%d] = %d %q", i, o, o)
		}
	}
}

// Reset keeps a request's memory, and drops all references to the old request.
func TestResetLeavesNothingBehind(t *testing.T) {
	used := Request{
		o: &Options{}, Domain: "shop", added: 1,
		Descriptors: []Descriptor{{Cost: 1, added: 1, Entries: []descriptors.Entry{{Key: "user", Value: "a"}}}},
		entries:     []descriptors.Entry{{Key: "user", Value: "a"}},
		Verdict: Verdict{
			Statuses:  []Status{{Rule: &descriptors.Rule{}}},
			Asked:     descriptors.Asked{Limits: []*descriptors.Limit{{}}, Hits: []limiter.Hit{{Key: "k"}}},
			Decisions: []limiter.Decision{{}},
			Denied:    true, quotaDenies: true, held: Held{delayed: &delayed{}}, Wait: 1, StoreErr: limiter.ErrInvalid,
		},
	}
	r := used
	r.Reset()
	v := &r.Verdict
	for name, n := range map[string]int{
		"bytes of the domain": len(r.Domain), "descriptors": len(r.Descriptors), "added": r.added, "entries": len(r.entries),
		"statuses": len(v.Statuses), "limits": len(v.Limits), "hits": len(v.Hits), "decisions": len(v.Decisions),
		"wait": int(v.Wait),
	} {
		if n != 0 {
			t.Errorf("%d %s are left", n, name)
		}
	}
	if v.Denied || v.quotaDenies || v.held.delayed != nil || v.StoreErr != nil || r.o != used.o {
		t.Errorf("flags are left: %+v", v)
	}
	if used.Descriptors[0].Entries != nil || used.entries[0].Value != "" || used.Verdict.Statuses[0].Rule != nil ||
		used.Verdict.Limits[0] != nil || used.Verdict.Hits[0].Key != "" {
		t.Errorf("the request is kept alive: %+v", used)
	}
}

// Of descriptors and entries beyond the maximum, a request keeps only the number.
func TestRequestBoundsItsMemory(t *testing.T) {
	r := &Request{o: &Options{Config: Config{MaxDescriptors: 2}, MaxEntries: 3, MaxEntryBytes: 99}, Domain: "shop"}
	entries := slices.Repeat([]descriptors.Entry{{Key: "api_key", Value: "secret"}}, 4)
	for range 5 {
		r.Add(Descriptor{Entries: entries, Cost: 1})
	}
	if len(r.Descriptors) != 2 || len(r.Descriptors[1].Entries) != 3 || len(r.entries) != 6 {
		t.Errorf("%d descriptors and %d entries are kept", len(r.Descriptors), len(r.entries))
	}
	if err := r.check(); err == nil || err.Error() != "descriptors: must be at most 2, got 5" {
		t.Error(err)
	}
	r.added = 2
	if err := r.check(); err == nil || err.Error() != "descriptors[0].entries: must be at most 3, got 4" {
		t.Error(err)
	}
	r.Reset()
	for i, e := range r.entries[:cap(r.entries)] {
		if e != (descriptors.Entry{}) {
			t.Errorf("entry %d of the request is still there: %+v", i, e)
		}
	}
	for i, d := range r.Descriptors[:cap(r.Descriptors)] {
		if d.Entries != nil || d.added != 0 {
			t.Errorf("descriptor %d of the request is still there: %+v", i, d)
		}
	}
}
