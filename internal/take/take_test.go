package take_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// heard records the calls of stages and the server.
type heard struct{ all []string }

func (h *heard) hear(format string, args ...any) { h.all = append(h.all, fmt.Sprintf(format, args...)) }

// stage answers requests for its key.
type stage struct {
	*heard
	name string
}

func (s stage) Before(c *take.Call) bool {
	s.hear("%s before %s", s.name, c.Hits[0].Key)
	return c.Hits[0].Key == s.name
}
func (s stage) After(c *take.Call) { s.hear("%s after %s", s.name, c.Hits[0].Key) }

// server answers all calls that reach it.
type server struct{ *heard }

func (s server) Take(context.Context, []limiter.Hit, []limiter.Decision) error { return nil }
func (s server) TakeAll(calls []*storekit.Call) {
	var keys []string
	for _, c := range calls {
		keys = append(keys, c.Hits[0].Key)
	}
	s.hear("server %v", keys)
}

func call(key string) *take.Call {
	return &take.Call{Call: storekit.Call{Ctx: context.Background(), Hits: []limiter.Hit{{Key: key}}}}
}

// Calls pass the stages in order. Calls that no stage answered go to the server together. Each stage that let a call
// pass gets it back once, in reverse order.
func TestChain(t *testing.T) {
	h := &heard{}
	k := take.Of(server{h}).Behind(stage{h, "b"}).Behind(stage{h, "a"})
	check := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(h.all, want) {
			t.Errorf("%s: %q, want %q", what, h.all, want)
		}
		h.all = nil
	}
	x, y := call("x"), call("y")
	if k.Try(x) || !k.Try(call("b")) {
		t.Error("Try answers what no stage knows, or not what one knows")
	}
	check("Try", "a before x", "b before x", "a before b", "b before b", "a after b")
	k.TakeAll([]*take.Call{x, call("a"), y})
	check("TakeAll", "a before a", "a before y", "b before y", "server [x y]", "b after x", "a after x", "b after y", "a after y")
	if err := k.Take(t.Context(), []limiter.Hit{{Key: "b"}}, nil); err != nil {
		t.Error(err)
	}
	check("Take", "a before b", "b before b", "a after b")
	m := take.Memory(server{h}).Behind(stage{h, "a"})
	if !m.Try(call("x")) {
		t.Error("memory has to be waited for")
	}
	check("Memory", "a before x", "a after x")
}
