//go:build e2e

package peer

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// soon is how long Weir may take to use rules that a control plane has sent, on a busy machine.
const soon = time.Minute

// follower is a service with a control plane of its own.
type follower struct {
	*service

	plane   *partnertest.ControlPlane
	version int
	asked   int
}

// set has the control plane send the rules.
func (f *follower) set(rules []*ratelimitv3.RateLimitConfig) {
	f.version++
	f.plane.NACKs() // of what it had before
	f.plane.Set(strconv.Itoa(f.version), rules...)
}

// await returns when holds does.
func (f *follower) await(t *testing.T, what string, within time.Duration, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); <-time.After(10 * time.Millisecond) {
		f.plane.NACKs() // so that the control plane never waits for the test
		if time.Since(began) > within {
			t.Fatalf("%s: %s, not in %s", f.name, what, within)
		}
	}
}

// answers reports whether the service answers a new client so.
func (f *follower) answers(t *testing.T, want string) bool {
	t.Helper()
	f.asked++
	return f.ask(t.Context(), request(t, "shop", fmt.Sprintf("k=%d", f.asked))).short() == want
}

// stage is a random set of rules, and what a new client is answered with it.
type stage struct {
	name  string
	rules []*ratelimitv3.RateLimitConfig
	want  string
}

func randomStage(rng *rand.Rand) stage {
	if chance(rng, 4) {
		return stage{"no rules", nil, "OK - OK"}
	}
	n := 2 + rng.Uint32N(1_000_000)
	return stage{
		name:  fmt.Sprintf("%d an hour", n),
		rules: []*ratelimitv3.RateLimitConfig{partnertest.Domain("shop", partnertest.Limit("k", "", n))},
		want:  fmt.Sprintf("OK - OK %d/%d HOUR", n-1, n),
	}
}

// refused are rules that both refuse.
func refused() []*ratelimitv3.RateLimitConfig {
	return []*ratelimitv3.RateLimitConfig{partnertest.Domain("shop", partnertest.Limit("k", "", 1), partnertest.Limit("", "v", 1))}
}

// TestXDS compares both over the lives of streams to control planes that send the same: rules, other rules, none, ones
// that are refused, again and again, mended ones, and that restart. After each step both answer by the same rules, Weir
// soon, and /healthcheck is the same.
func TestXDS(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("to repeat: -peer.seed=%d", seed)
	for i, settings := range []env{
		{}, {"FORCE_START_WITHOUT_INITIAL_CONFIG": "true"}, {"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true"},
	} {
		t.Run(fmt.Sprint(settings), func(t *testing.T) {
			t.Parallel()
			compareXDS(t, rand.New(rand.NewPCG(seed, uint64(i))), settings)
		})
	}
}

func compareXDS(t *testing.T, rng *rand.Rand, settings env) {
	t.Helper()
	now := randomStage(rng)
	var both []*follower
	for _, name := range []string{"peer", "weir"} {
		f := &follower{plane: partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})}
		f.set(now.rules) // the peer does not listen before
		binary := weirAsRatelimit(t)
		if name == "peer" {
			binary = proctest.Program(t, "service_cmd")
		}
		f.service = startService(t, name, binary, t.TempDir(), settings.with(env{
			"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": f.plane.Addr,
			"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL": "100ms", "XDS_CLIENT_BACKOFF_MAX_INTERVAL": "100ms",
		}))
		both = append(both, f)
	}
	peer, weir := both[0], both[1]
	longest := time.Duration(0)
	same := func(what string) {
		t.Helper()
		began := time.Now()
		weir.await(t, what, soon, func() bool { return weir.answers(t, now.want) })
		longest = max(longest, time.Since(began))
		peer.await(t, what, patience, func() bool { return peer.answers(t, now.want) })
		want := http.StatusOK
		if now.rules == nil && settings["HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"] == "true" {
			want = http.StatusInternalServerError
		}
		for _, f := range both {
			f.await(t, fmt.Sprintf("%s: /healthcheck is %d", what, want), soon, func() bool {
				return f.get(t, f.http, "GET", "/healthcheck", "").code == want
			})
		}
	}
	same("at first " + now.name)
	for i := range casetest.Pick(4, 30) {
		what := fmt.Sprintf("step %d", i)
		switch {
		case i == 0 || chance(rng, 3): // the same refused rules several times
			what += ", refused, then "
			for range 1 + rng.IntN(6) {
				for _, f := range both {
					f.set(refused())
					f.await(t, what+"a NACK", patience, func() bool { return f.plane.NACKs() > 0 })
				}
			}
			same(what + "still " + now.name)
		case i == 1 || chance(rng, 6):
			what += ", a restart, then "
			for _, f := range both {
				f.plane.Stop()
				// With other versions than before.
				f.plane = partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{Addr: f.plane.Addr})
			}
		}
		now = randomStage(rng)
		for _, f := range both {
			f.set(now.rules)
		}
		same(what + now.name)
	}
	t.Logf("Weir took %s at most", longest.Round(time.Millisecond))
}
