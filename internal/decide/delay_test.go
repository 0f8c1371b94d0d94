package decide_test

import (
	"context"
	"testing"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// buggy is a Watcher that panics.
type buggy struct{}

func (buggy) Watch(context.Context, *decide.Verdict) { panic("a bug") }

// A delayed request whose watcher panics frees its slot. Otherwise, panics would use up all slots.
func TestPanicFreesThePlace(t *testing.T) {
	d := newDecider(t, casetest.Compile(t, mixed), buggy{})
	for range 2 { // the second one has to wait
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the watcher was not called")
				}
			}()
			_, err := decided(t.Context(), d, request(d, "turn"))
			t.Errorf("Decide returned %v", err)
		}()
	}
	if n := d.Delayed().Now; n != 0 {
		t.Errorf("%d places are still taken", n)
	}
}
