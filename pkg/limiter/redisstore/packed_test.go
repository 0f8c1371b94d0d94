package redisstore

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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

// A policy is packed once for each engine.
func TestPackedPolicies(t *testing.T) {
	p := differentPolicies(t, 1)[0]
	h, cell := &limiter.Hit{Policy: p, N: 1}, &limiter.Hit{Policy: p, Route: Route{RedisCell: true}, N: 1}
	for range 2 {
		if packed(decider{policy: p}, h, 0) != packed(decider{policy: p}, h, 1) {
			t.Error("a policy is packed again for each batch")
		}
		if packed(decider{p, true}, cell, 0).text == packed(decider{policy: p}, h, 0).text {
			t.Error("hits that the redis-cell module decides have the arguments of those that it does not")
		}
	}
}

// The packed windows of a calendar are those around the time of the batch.
func TestCalendarsArePackedEachTime(t *testing.T) {
	p, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: 1, Window: 24 * time.Hour, Align: limiter.AlignCalendar,
		TimeZone: time.UTC,
	})
	if err != nil {
		t.Fatal(err)
	}
	h := &limiter.Hit{Policy: p, N: 1}
	day := (24 * time.Hour).Microseconds()
	if packed(decider{policy: p}, h, 10*day).text == packed(decider{policy: p}, h, 20*day).text {
		t.Error("another day has the windows of the first one")
	}
}

// A batch has each of its policies once, however many there are, even with reused buffers.
func TestPoliciesOfABatch(t *testing.T) {
	var b batch
	for _, n := range []int{3, 5 * few, 2, few + 1} {
		all := differentPolicies(t, n)
		for range 2 {
			for i, p := range all {
				if got := b.policy(&limiter.Hit{Policy: p, N: 1}, 0); got != argumentsBefore+int64(i)+1 {
					t.Fatalf("policy %d of %d is argument %d", i+1, n, got)
				}
			}
		}
		if len(b.texts) != n {
			t.Errorf("a batch of %d policies has %d", n, len(b.texts))
		}
		b.reset()
	}
}

// A batch has each of its keys once and unchanged.
func TestKeysOfABatch(t *testing.T) {
	p := differentPolicies(t, 1)[0]
	var counters []string
	for i := range 3 * few {
		counters = append(counters, strings.Repeat("x", i), fmt.Sprintf("f|a=%d", i), fmt.Sprintf("f|a={%d}", i))
	}
	for _, slotted := range []bool{false, true} {
		r := &batcher{keyspace: keyspace{prefix: "weir:1:", slotted: slotted}, now: func() int64 { return 0 }}
		var b batch
		for _, n := range []int{1, len(counters), few, few + 1} {
			b.reset()
			for range 2 {
				for _, counter := range counters[:n] {
					b.add(&call{hits: []limiter.Hit{{Key: counter, Policy: p, N: 1}}})
				}
			}
			r.write(&b)
			if len(b.keys) != n {
				t.Fatalf("%d counters have %d keys", n, len(b.keys))
			}
			for i, key := range b.keys {
				if want := r.key(counters[i]); key != want {
					t.Errorf("slotted %t: counter %q has the key %q, want %q", slotted, counters[i], key, want)
				}
			}
			for i := range 2 * n {
				if got, want := doubleOf(b.numbers[i*double:]), float64(i%n+1); got != want {
					t.Errorf("of %d counters, hit %d has number %v, want %v", n, i, got, want)
				}
			}
		}
	}
}

// If a reply has not the form of the script's answer, the requests get an error.
func TestOddAnswers(t *testing.T) {
	for _, tt := range []struct {
		answer any
		want   string
	}{
		{int64(12), "the script returned int64, want a string"},
		{[]any{}, "the script returned []interface {}, want a string"},
		{"abc", "the script returned 3 bytes for 1 hits, which is too short"},
		{strings.Repeat("\x00", 24), "the script returned 24 bytes for 1 hits, 8 too many"},
		{[]any{strings.Repeat("\x00", 16), []any{int64(1), "no"}, int64(1), int64(0), int64(0)}, "no"},
	} {
		var b batch
		c := &call{hits: []limiter.Hit{{Key: "k", Policy: differentPolicies(t, 1)[0], N: 1}}}
		b.add(c)
		b.cmd = &redis.Cmd{}
		b.cmd.SetVal(tt.answer)
		err := (&batcher{sent: new(sent)}).read(&b)
		if err == nil {
			err = c.err
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.40q: %v, want %q", tt.answer, err, tt.want)
		}
	}
}

func doubleOf(packed []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(packed)) }
