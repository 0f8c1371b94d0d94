package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/proctest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// An outage is logged when it begins and when it is over: when nothing has failed for a while, and the store
// answers. However many requests fail, that is two lines. What is counted locally meanwhile is forgotten then.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		log := &proctest.Buffer{}
		down := errors.New("connection refused")
		var answers atomic.Bool
		s := &store{log: slog.New(slog.NewTextHandler(log, nil)), ping: func(context.Context) error {
			if answers.Load() {
				return nil
			}
			return down
		}, local: &local{maxKeys: 100}}
		go s.watch(ctx)
		hit := []limiter.Hit{{Key: "k", Policy: hourly(t), N: 1}}
		passes := func(want bool) {
			t.Helper()
			var out [1]limiter.Decision
			if err := s.local.Take(ctx, hit, out[:]); err != nil || out[0].Allowed != want {
				t.Errorf("locally: allowed %t, %v; want %t", out[0].Allowed, err, want)
			}
		}

		lines := func(want ...string) {
			t.Helper()
			synctest.Wait()
			got := strings.Split(strings.TrimSpace(log.String()), "\n")
			for i, line := range got {
				if len(got) != len(want) || !strings.HasSuffix(line, want[i]) {
					t.Fatalf("the log is\n%swant lines that end with %q", log, want)
				}
			}
		}
		const begins = `level=ERROR msg="store fails, requests are answered by each rule's on_store_failure" error="connection refused"`
		for range 100 {
			s.failed(down)
			time.Sleep(100 * time.Millisecond)
		}
		lines(begins)
		passes(true)
		time.Sleep(3 * outageQuiet) // nobody asks, and it does not answer
		lines(begins)
		passes(false)
		answers.Store(true)
		time.Sleep(outageQuiet)
		const ends = `level=INFO msg="store answers again" failed_requests=100`
		lines(begins, ends)
		time.Sleep(3 * outageQuiet)
		lines(begins, ends)
		s.failed(down)
		time.Sleep(2*outageQuiet + time.Second)
		lines(begins, ends, begins, `level=INFO msg="store answers again" failed_requests=1`)
		passes(true)
		cancel()
		if err := s.dropLocal(); err != nil {
			t.Error(err)
		}
	})
}

// hourly lets one hit an hour pass.
func hourly(t *testing.T) *limiter.Policy {
	t.Helper()
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
