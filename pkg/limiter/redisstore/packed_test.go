package redisstore

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// differentPolicies returns n policies that decide differently.
func differentPolicies(t *testing.T, n int) []*limiter.Policy {
	t.Helper()
	all := make([]*limiter.Policy, n)
	for i := range all {
		var err error
		all[i], err = limiter.NewPolicy(limiter.Params{
			Algorithm: limiter.Funnel, Limit: int64(i + 1), Window: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// More policies than there are slots push each other out, and each is still packed as its own.
func TestPackedPolicies(t *testing.T) {
	var c packedPolicies
	all := differentPolicies(t, 4*len(c.slots))
	for range 2 {
		for i, p := range all {
			h := &limiter.Hit{Policy: p, N: 1}
			by := decider{policy: p}
			want := packPolicy(by, h, nil).text
			for range 2 {
				if got := c.of(by, h, 0); got.text != want {
					t.Fatalf("policy %d is packed as another one", i)
				}
			}
		}
	}
	first, h := decider{policy: all[0]}, &limiter.Hit{Policy: all[0], N: 1}
	if c.of(first, h, 0) != c.of(first, h, 1) {
		t.Error("a policy is packed again for each batch")
	}
	cell := &limiter.Hit{Policy: all[0], Route: Route{RedisCell: true}, N: 1}
	if c.of(decider{all[0], true}, cell, 0).text == c.of(first, h, 0).text {
		t.Error("hits that the redis-cell module decides have the arguments of those that it does not")
	}
}

// The windows of a calendar are those around the time of the batch.
func TestCalendarsArePackedEachTime(t *testing.T) {
	p, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: 1, Window: 24 * time.Hour, Align: limiter.AlignCalendar,
		TimeZone: time.UTC,
	})
	if err != nil {
		t.Fatal(err)
	}
	var c packedPolicies
	h := &limiter.Hit{Policy: p, N: 1}
	day := (24 * time.Hour).Microseconds()
	if c.of(decider{policy: p}, h, 10*day).text == c.of(decider{policy: p}, h, 20*day).text {
		t.Error("another day has the windows of the first one")
	}
}

// A batch has each of its policies one time, however many there are, and also when its buffers are used again.
func TestPoliciesOfABatch(t *testing.T) {
	var c packedPolicies
	var b batch
	for _, n := range []int{3, 5 * scannedPolicies, 2, scannedPolicies + 1} {
		all := differentPolicies(t, n)
		for range 2 {
			for i, p := range all {
				if got := b.policy(&limiter.Hit{Policy: p, N: 1}, &c, 0); got != int64(i)+1 {
					t.Fatalf("policy %d of %d has number %d", i+1, n, got)
				}
			}
		}
		if len(b.policies) != n {
			t.Errorf("a batch of %d policies has %d", n, len(b.policies))
		}
		b.reset()
	}
}

// The keys of a batch are written one after the other, and read as they are.
func TestKeysOfABatch(t *testing.T) {
	for _, slotted := range []bool{false, true} {
		k := keyspace{prefix: "weir:1:", slotted: slotted}
		for _, key := range []string{"", "f|", "f|a=b", "f|a={b}", "f", "ü|ü"} {
			if got, want := string(k.appendKey([]byte("before"), key)), "before"+k.key(key); got != want {
				t.Errorf("slotted %t: key %q is written as %q, want %q", slotted, key, got, want)
			}
		}
	}
}
