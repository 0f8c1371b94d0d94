//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// serverFaults are faults of the server itself.
func serverFaults() []fault {
	faults := []fault{
		// What the machine does by itself:
		{"none", all, func(*rig) func() { return func() {} }},
		// Before the restart, after which the server has the machine's clock:
		{"clock steps 1 h ahead", none, func(r *rig) func() { return r.stepClock(time.Hour) }},
		// Counters in use deny for a second:
		{"clock steps 1 s back", all, func(r *rig) func() { return r.stepClock(-time.Second) }},
		{"kill -9, restart", none, func(r *rig) func() {
			r.server.Kill()
			return r.server.Restart
		}},
		{"SIGSTOP, SIGCONT", all, func(r *rig) func() {
			r.server.Pause()
			return r.server.Resume
		}},
		{"FLUSHALL", none, func(r *rig) func() {
			r.must(r.redis.FlushAll(r.t.Context()).Err())
			return func() {}
		}},
		{"SCRIPT FLUSH", all, func(r *rig) func() {
			r.must(r.redis.ScriptFlush(r.t.Context()).Err())
			return func() {}
		}},
		{"`maxmemory`, noeviction", all, func(r *rig) func() {
			r.config("maxmemory", "1")
			return func() { r.config("maxmemory", "0") }
		}},
		{"disk full (MISCONF)", all, (*rig).failToSave},
		{"LOADING", all, (*rig).reload},
		{"BUSY script", all, (*rig).busy},
	}
	policies := []string{"allkeys-lru", "volatile-ttl"}
	if *chaos {
		policies = []string{
			"allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl",
		}
	}
	for _, policy := range policies {
		faults = append(faults, fault{"`maxmemory`, " + policy, evicts, func(r *rig) func() { return r.fill(policy) }})
	}
	return faults
}

// stepClock moves the server's clock. It stays so: there is nothing to heal.
func (r *rig) stepClock(by time.Duration) func() {
	r.clock.step(by)
	asked := time.Now()
	now, err := r.redis.Time(r.t.Context()).Result()
	r.must(err)
	least, most := time.Until(now).Round(time.Second), now.Sub(asked).Round(time.Second)
	if r.clock.off < least || r.clock.off > most {
		r.t.Fatalf("the server's clock is %s to %s ahead, want %s", least, most, r.clock.off)
	}
	return func() {}
}

// failToSave has the server's snapshots fail as they do on a full disk: it then refuses to write.
func (r *rig) failToSave() func() {
	ctx := r.t.Context()
	dir, file := r.redis.ConfigGet(ctx, "dir").Val()["dir"], r.redis.ConfigGet(ctx, "dbfilename").Val()["dbfilename"]
	path := dir + "/" + file
	save := func(want string) {
		r.t.Helper()
		proctest.Eventually(r.t, "a snapshot that is "+want, func() bool {
			_ = r.redis.BgSave(ctx).Err() // one may be under way
			return strings.Contains(r.redis.Info(ctx, "persistence").Val(), "rdb_last_bgsave_status:"+want)
		})
	}
	_ = os.Remove(path)
	r.must(os.Mkdir(path, 0o700)) // which no file can be renamed to
	r.config("save", "3600 1000000")
	save("err")
	return func() {
		r.must(os.Remove(path))
		save("ok")
		r.config("save", "")
	}
}

// reload has the server load its data for as long as the fault is to last, and answer LOADING meanwhile.
func (r *rig) reload() func() {
	ctx := r.t.Context()
	keys := int(r.span / time.Millisecond)
	r.must(r.redis.Do(ctx, "debug", "populate", keys, "filler", 2048).Err())
	r.config("key-load-delay", "1000")
	r.config("loading-process-events-interval-bytes", "1024")
	ended := make(chan error, 1)
	go func() { ended <- r.redis.Do(ctx, "debug", "reload").Err() }()
	return func() {
		r.must(<-ended)
		r.config("key-load-delay", "0")
	}
}

// busy runs a script that does not end: the server first hangs, and then answers BUSY.
func (r *rig) busy() func() {
	ctx := r.t.Context()
	r.config("busy-reply-threshold", "100")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.redis.Eval(ctx, "while true do end", nil).Err() // it is killed
	}()
	return func() {
		r.must(r.redis.ScriptKill(ctx).Err())
		<-ended
	}
}

// fill writes keys, also when the server already evicts some.
func (r *rig) fill(policy string) func() {
	ctx, cancel := context.WithCancel(r.t.Context())
	used := info(r.t, r.redis, "memory", `used_memory:([0-9]+)`)
	r.config("maxmemory-policy", policy)
	r.config("maxmemory", strconv.Itoa(int(used)+1<<20))
	ended := make(chan struct{})
	value := strings.Repeat("x", 1024)
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			pipe := r.redis.Pipeline()
			for j := range 20 {
				pipe.Set(ctx, fmt.Sprintf("filler:%d", 20*i+j), value, time.Hour)
			}
			_, _ = pipe.Exec(ctx) // a server that has no room refuses
			<-time.After(pace())
		}
	}()
	return func() {
		cancel()
		<-ended
		r.config("maxmemory", "0")
		r.config("maxmemory-policy", "noeviction")
	}
}

// info returns a number of a section of INFO.
func info(t *testing.T, c *redis.Client, section, pattern string) float64 {
	t.Helper()
	text := c.Info(t.Context(), section).Val()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("INFO %s has no %s:\n%s", section, pattern, text)
	}
	v, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
