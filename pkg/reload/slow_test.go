package reload_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A slow load is reported once, and ends soon after newer content. Newer content does not end two loads in succession.
func TestNewerContentEndsALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "a"}
		r, events := inMemory(t, src)
		if err := r.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		run(t, r)
		edit := func(content string, after time.Duration) {
			src.set(content, nil)
			src.hint()
			time.Sleep(after)
		}
		edit("slow 1", 10*time.Second)
		if since := time.Since(r.Status().Loading); since < 9*time.Second || since > 10*time.Second {
			t.Errorf("it has been loading for %v, want almost 10 s", since)
		}
		edit("b", time.Second)
		if r.Get() != "b" || !r.Status().Loading.IsZero() {
			t.Errorf("%q is live a second after it was written, %+v", r.Get(), r.Status())
		}
		if got := strings.Join(events.take(), ", "); strings.ReplaceAll(got, "poll", "watch") != // whichever is first
			"start loaded, watch slow, watch loaded" {
			t.Errorf("events: %s", got)
		}

		edit("slow 2", time.Second)
		edit("slow 3", time.Second)
		edit("c", time.Second)
		if r.Get() != "b" {
			t.Errorf("%q is live: files that always change would never be", r.Get())
		}
		time.Sleep(20 * time.Second)
		if r.Get() != "c" {
			t.Errorf("%q is live after all, want c", r.Get())
		}
		if got := strings.Join(events.take(), ", "); strings.ReplaceAll(got, "poll", "watch") !=
			"watch slow, watch loaded, watch loaded" {
			t.Errorf("events: %s", got)
		}
	})
}

// A load ends with the context of Run or Load. The next load judges the content.
func TestTheEndEndsALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memory{content: "slow"}
		r, events := inMemory(t, src)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		wantError(t, r.Load(ctx), context.DeadlineExceeded.Error())
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("it ended after %v", took)
		}
		events.want(t)
		if err := r.Load(t.Context()); err != nil || r.Get() != "slow" {
			t.Errorf("%q is live, %v", r.Get(), err)
		}
		events.want(t, "start slow", "start loaded")
	})
}
