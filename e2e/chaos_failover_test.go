//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// brief is how long a server is away before its replica takes over, which takes another second or two.
const brief = 500 * time.Millisecond

// startSentinelRig has the processes ask a sentinel for the master.
func startSentinelRig(t *testing.T) *rig {
	t.Helper()
	s := redistest.StartSentinel(t)
	r := &rig{t: t, sentinel: s}
	r.startWeirs(s.URL())
	return r
}

func sentinelFaults() []fault {
	return []fault{{"Sentinel: master killed", none, func(r *rig) func() {
		r.span = brief
		r.sentinel.Master.Kill()
		return func() { r.sentinel.AwaitMaster(r.t, r.sentinel.Replica) }
	}}}
}

// startClusterRig has the processes use a Cluster of three masters with a replica each.
func startClusterRig(t *testing.T) *rig {
	t.Helper()
	c := redistest.StartCluster(t, 3, "--cluster-require-full-coverage", "no")
	r := &rig{t: t, cluster: c}
	r.startWeirs(c.URL())
	return r
}

// clusterFaults are faults of the first master. The counters on the other masters have a row of their own.
func clusterFaults() []fault {
	return []fault{
		{"Cluster: slots migrate", all, (*rig).migrate},
		{"Cluster: a master hangs", all, func(r *rig) func() {
			r.cluster.Masters[0].Pause()
			return r.cluster.Masters[0].Resume
		}},
		{"Cluster: a master killed", none, func(r *rig) func() { // the last one, since it stays so
			r.span = brief
			r.cluster.Masters[0].Kill()
			return func() { r.cluster.Promote(0) }
		}},
	}
}

// migrate moves the slots of all counters of the fault to another master, one by one and at leisure.
func (r *rig) migrate() func() {
	from, to := r.cluster.Masters[0], r.cluster.Masters[1]
	for _, slot := range r.slots(r.keys[0]) {
		r.cluster.Move(slot, from, to, func() { <-time.After(r.span / time.Duration(len(chaosLimits))) })
	}
	r.span = 0
	return func() {}
}

// slots are where the counters of a key are, of each rule one.
func (r *rig) slots(key string) (slots []int) {
	for _, rule := range chaosLimits {
		counter := fmt.Sprintf("weir:1:funnel|{shop|%s=%s}", rule, key)
		slot, _ := redistest.Do(r.t, r.cluster.Masters[1], "cluster", "keyslot", counter).(int64)
		slots = append(slots, int(slot))
	}
	return slots
}

// keysFor are the keys that are asked about during a fault. In a cluster the first one has all its counters on the
// first master, and the second one none.
func (r *rig) keysFor(f fault) []string {
	if r.cluster == nil {
		return []string{f.name}
	}
	name := strings.Map(func(c rune) rune { // to what Weir's keys have as it is
		if unicode.IsLetter(c) {
			return c
		}
		return '-'
	}, f.name)
	on := func(first bool) string {
		for i := 0; ; i++ {
			key, fits := fmt.Sprintf("%s%0*d", name, 1+i%16, i), true // the slots of one length differ by a constant
			for _, slot := range r.slots(key) {
				fits = fits && (slot < 16384/3) == first
			}
			if fits {
				return key
			}
		}
	}
	return []string{on(true), on(false)}
}
