package redisstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// keyInSlot returns a key in the counter's slot, whatever the key and the prefix.
func TestBesides(t *testing.T) {
	for _, prefix := range []string{"weir:", "{weir}:", "a{b:", "a}b:", "{}:", "}{:"} {
		s := open(t, "redis+cluster://127.0.0.1:1", redisstore.Options{KeyPrefix: prefix})
		for _, key := range []string{
			"funnel|shop|user=a", "funnel|", "|", "|x", "", "ping", "funnel:a|shop|{user}=a", "funnel|{}", "a{b|c", "a}b|c",
			"funnel|a}b", "x|y|z",
		} {
			if got, want := redisstore.SlotOf(s.KeyInSlot(key)), redisstore.SlotOf(s.Key(key)); got != want {
				t.Errorf("prefix %q: %q is in slot %d, %s in %d", prefix, s.KeyInSlot(key), got, s.Key(key), want)
			}
		}
	}
}

// clusterPing checks that Ping of a cluster succeeds only if each master can decide requests.
func clusterPing(t *testing.T, c *redistest.Cluster) {
	s := open(t, c.URL(), redisstore.Options{})
	whole := open(t, c.URL(), redisstore.Options{KeyPrefix: "{one}:"})
	patient := open(t, c.URL(), redisstore.Options{Timeout: 5 * time.Second})
	if err := errors.Join(s.Ping(t.Context()), patient.Probe(t.Context(), "")); err != nil {
		t.Fatal(err)
	}
	take(t, s, "funnel|shop|user=a", funnel(t, 10, time.Hour), 1)
	if n := testing.AllocsPerRun(100, func() { _ = s.Shard("funnel|shop|user=a") }); n != 0 ||
		s.Shard("funnel|shop|user=a") == "" {
		t.Errorf("to find the shard of a key takes %g allocations, want none", n)
	}
	for i, m := range c.Masters {
		redistest.Do(t, m, "config", "set", "maxmemory", "1")
		err := s.Ping(t.Context())
		if want := m.Addr() + ": OOM"; !strings.Contains(fmt.Sprint(err), want) || failures(err) != "/"+m.Addr()+" answered" {
			t.Errorf("master %d is full: %v, want %q", i, err, want)
		}
		at := int(redisstore.SlotOf("{one}:")) / (16384/3 + 1)
		if err := whole.Ping(t.Context()); (err != nil) != (i == at) {
			t.Errorf("master %d is full, and all counters are on master %d: %v", i, at, err)
		}
		redistest.Do(t, m, "config", "set", "maxmemory", "0")
	}
}
