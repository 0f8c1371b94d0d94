package decide_test

import (
	"context"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// panics is a Watcher with a bug.
type panics struct{}

func (panics) Watch(context.Context, *decide.Verdict) { panic("a bug") }

// A delayed request whose watcher panics frees its place: else so many panics would have all delayed requests denied.
func TestPanicFreesThePlace(t *testing.T) {
	rules := descriptors.NewBuilder(descriptors.Process{})
	rules.Add("shop", &descriptors.Descriptor{Key: "print", RateLimit: &descriptors.RateLimit{
		Params: limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 1, Window: time.Hour, Burst: 5, MaxWait: time.Hour},
	}})
	set, err := rules.Build()
	if err != nil {
		t.Fatal(err)
	}
	d := newDecider(t, set, panics{})
	for range 2 { // the second one has to wait
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the watcher was not called")
				}
			}()
			r := d.NewRequest()
			r.Domain = "shop"
			r.Add(decide.Descriptor{Cost: 1, Entries: []descriptors.Entry{{Key: "print", Value: "p"}}})
			_, err := d.Decide(t.Context(), r)
			t.Errorf("Decide returned %v", err)
		}()
	}
	if n := d.Delayed().Now; n != 0 {
		t.Errorf("%d places are still taken", n)
	}
}
