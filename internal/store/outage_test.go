package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// An outage is logged when it begins and when it ends, which is when the store responds and no request has failed for a
// while. Any number of failed requests causes these two lines. Local counts are cleared after the outage.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		log := &proctest.Buffer{}
		down := errors.New("connection refused")
		var answers atomic.Bool
		s := watchedStore(t, log, func() error {
			if answers.Load() {
				return nil
			}
			return down
		})
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
		const begins = `: as written" error="connection refused" check="is Redis up, and are its address, the network and TLS right?"`
		for range 100 {
			s.Failed(down)
			time.Sleep(100 * time.Millisecond)
		}
		lines(begins)
		passes(true)
		time.Sleep(3 * quiet) // nobody asks, and it does not answer
		lines(begins)
		passes(false)
		answers.Store(true)
		time.Sleep(quiet)
		const ends = `level=INFO msg="Redis decides again at redis://there" failed_requests=100`
		lines(begins, ends)
		time.Sleep(3 * quiet)
		lines(begins, ends)
		s.Failed(down)
		time.Sleep(2*quiet + time.Second)
		lines(begins, ends, begins, `level=INFO msg="Redis decides again at redis://there" failed_requests=1`)
		passes(true)
		cancel()
	})
}

// watchedStore returns a store with one remote, where the number of requests is that of failures.
func watchedStore(t *testing.T, log *proctest.Buffer, ping func() error) *Store {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(log, nil))
	memory, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = memory.Close() })
	answer := func(context.Context) error { return ping() }
	r := &remote{
		label: "redis://there", timeout: 15 * time.Millisecond, ping: answer, pingInTime: answer,
	}
	r.o = &Options{Log: logger, Effects: func(string) string { return "as written" }, Requests: r.failures.Load}
	return &Store{log: logger, remotes: []*remote{r}, local: memory}
}

// Each outage has one line when it begins and one when it ends, even in quick succession. A store that fails all the
// time causes at most two lines a second.
func TestOutagesThatFollow(t *testing.T) {
	for _, c := range []struct {
		down, up time.Duration
		outages  int
	}{
		{2 * time.Second, 2 * time.Second, 3},
		{300 * time.Millisecond, 2 * time.Second, 3},
		{20 * time.Second, 20 * time.Second, 2},
		{90 * time.Millisecond, 80 * time.Millisecond, 300},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			log, refused := &proctest.Buffer{}, errors.New("connection refused")
			var down atomic.Bool
			s := watchedStore(t, log, func() error {
				if down.Load() {
					return refused
				}
				return nil
			})
			go s.watch(ctx)
			time.Sleep(20 * time.Millisecond) // requests and pings take turns
			began := time.Now()
			for range c.outages {
				down.Store(true)
				for at := time.Now(); time.Since(at) < c.down; time.Sleep(10 * time.Millisecond) {
					s.Failed(refused)
				}
				down.Store(false)
				time.Sleep(c.up)
			}
			time.Sleep(3 * quiet)
			sentences, goesOn := 0, false
			for line := range strings.Lines(log.String()) {
				begins := strings.Contains(line, "Redis unreachable")
				if begins && goesOn {
					t.Errorf("two sentences without an end between them: %s", line)
				}
				if goesOn = begins; begins {
					sentences++
				}
			}
			most := min(c.outages, int(time.Since(began)/time.Second))
			if goesOn || sentences > most || c.up > time.Second && sentences < c.outages || s.Outage(ctx) != "" {
				t.Errorf("%d outages of %s, %s apart: %d sentences, then %q; the log is\n%.4000s", c.outages, c.down, c.up,
					sentences, s.Outage(ctx), log)
			}
		})
	}
}

// If a failure policy decides for more than a minute, the log says so at a bounded rate, with the cause and what to
// check, and the metric shows it, even without queries of the state. It ends when the store responds in time. A store
// that decides nearly all requests does not count.
func TestPolicyDecidesForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		log := &proctest.Buffer{}
		slow := fmt.Errorf("%w: redis://there: %w", limiter.ErrUnavailable, context.DeadlineExceeded)
		var tooSlow atomic.Bool
		s := watchedStore(t, log, func() error {
			if tooSlow.Load() {
				return slow
			}
			return nil
		})
		var others atomic.Uint64
		r := s.remotes[0]
		r.o.Requests = func() uint64 { return r.failures.Load() + others.Load() }
		go s.watch(ctx)
		loudLines := func() (lines []string) { // those that are not about the beginning
			synctest.Wait()
			for line := range strings.Lines(log.String()) {
				_, since, isOutage := strings.Cut(line, `level=ERROR msg="Redis does not respond in time at redis://there since `)
				began, _ := time.Parse(time.RFC3339, strings.Split(since, "Z")[0]+"Z")
				now, err := time.Parse(time.RFC3339Nano, strings.Fields(strings.TrimPrefix(line, "time="))[0])
				if isOutage && (err != nil || now.Sub(began) > time.Second) {
					lines = append(lines, line)
				}
			}
			return lines
		}
		ask := func(requests int, every time.Duration) {
			for range requests {
				s.Failed(slow)
				time.Sleep(every)
			}
		}
		tooSlow.Store(true)
		ask(50, time.Second)
		if lines := loudLines(); len(lines) != 0 || s.remotes[0].policyFor() < 49*time.Second {
			t.Fatalf("after 50 s, which are %s: %q, want no line yet", s.remotes[0].policyFor(), lines)
		}
		ask(20, time.Second)
		lines := loudLines()
		if len(lines) != 1 {
			t.Fatalf("after 70 s: %d lines, want one:\n%s", len(lines), log)
		}
		if !strings.Contains(lines[0], "its timeout of 15ms") {
			t.Errorf("the line is\n%swant what to check in it", lines[0])
		}
		time.Sleep(time.Hour) // nobody asks
		if n := len(loudLines()); n < 10 || n > 13 {
			t.Errorf("%d lines in an hour, want one in %s", n, loudAgain)
		}
		tooSlow.Store(false)
		time.Sleep(2 * quiet)
		n := len(loudLines())
		if d := s.remotes[0].policyFor(); d != 0 || strings.Count(log.String(), "decides again") != 1 {
			t.Errorf("the store answers, and the policy has decided for %s; log:\n%s", d, log)
		}
		for range 300 { // one request in a thousand fails
			others.Add(1000)
			ask(1, time.Second)
		}
		if got := len(loudLines()); got != n || s.remotes[0].policyFor() > loud {
			t.Errorf("a store that decides nearly all requests: %d lines more, %s", got-n, s.remotes[0].policyFor())
		}
		for range 300 { // one in ten
			others.Add(10)
			ask(1, time.Second)
		}
		if got := len(loudLines()); got == n {
			t.Error("a store that fails for one request in ten for minutes: no line")
		}
	})
}

// A store that first does not respond in time, and then with an error, is logged twice and no more often, even if both
// alternate.
func TestBetterReasonIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log proctest.Buffer
		late, closed := context.DeadlineExceeded, io.EOF
		var why error
		r := watchedStore(t, &log, func() error { return why }).remotes[0]
		for _, step := range []struct {
			why         error
			reachable   bool
			line, check string
		}{
			{late, false, "Redis does not respond in time at redis://there", "does Redis hang"},
			{late, false, "", ""},
			{closed, false, "Redis unreachable at redis://there", "?proxy=true"},
			{late, false, "", ""},
			{closed, false, "", ""},
			{nil, true, "Redis decides again at redis://there", ""},
			{nil, true, "", ""},
			{closed, false, "Redis unreachable at redis://there", "?proxy=true"},
			{late, false, "", ""},
		} {
			before := log.String()
			why = step.why
			if got := r.reached(t.Context()) == nil; got != step.reachable {
				t.Errorf("%v: reachable %t", step.why, got)
			}
			line := strings.TrimPrefix(log.String(), before)
			if strings.Contains(line, "msg=") != (step.line != "") || !strings.Contains(line, step.line) ||
				!strings.Contains(line, step.check) {
				t.Errorf("%v is logged as %q, want %q with %q", step.why, line, step.line, step.check)
			}
			time.Sleep(pingAgain)
		}
	})
}

// Ping and Outage agree: each error has its sentence, and each sentence its error.
func TestPingAgreesWithTheSentence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log proctest.Buffer
		var why error
		s := watchedStore(t, &log, func() error { return why })
		for range 20 {
			if err, sentence := s.Ping(t.Context()), s.Outage(t.Context()); (err != nil) != (sentence != "") {
				t.Errorf("the error is %v, the sentence %q", err, sentence)
			}
			if why = io.EOF; rand.IntN(2) == 0 {
				why = nil
			}
			time.Sleep(pingAgain / 5)
		}
	})
}

// The sentence and the advice depend on the error.
func TestCause(t *testing.T) {
	for want, err := range map[string]error{
		"Redis does not respond in time at redis://there since.*does Redis hang":     &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded},
		"Redis unreachable at redis://there since.*is Redis up":                      &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
		"No credentials for Redis at redis://there since.*run its program":           credentialsError{errors.New("password_command: exit status 1")},
		"Redis returns errors at redis://there since.*the error that Redis returned": redisError("OOM command not allowed"),
	} {
		var log proctest.Buffer
		r := watchedStore(t, &log, nil).remotes[0]
		r.begin(t.Context(), fmt.Errorf("%w: the last call: %w", guard.ErrBreakerOpen, err), 0)
		if !regexp.MustCompile(want).MatchString(log.String()) {
			t.Errorf("%v is logged as\n%swant %s", err, &log, want)
		}
	}
}

// redisError is an error reply of Redis.
type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

// hourly admits one hit per hour.
func hourly(t *testing.T) *limiter.Policy {
	t.Helper()
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
