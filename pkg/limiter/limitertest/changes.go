package limitertest

import (
	_ "embed"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// changes are test cases of edited rules. The head of changes.txt explains the format.
//
//go:embed changes.txt
var changes string

// change charges a counter, edits its rule, and checks what remains, by a peek and by using it up.
func (s *scenario) change(key string, fields []string) (from, to *limiter.Policy) {
	s.Helper()
	from, to = s.limit(fields[0]), s.limit(fields[3])
	used, later, remaining, retry := s.number(fields[1]), s.time(fields[2]), s.number(fields[4]), s.time(fields[5])
	for range used {
		s.take(limiter.Hit{Key: key, Policy: from, N: 1})
	}
	s.clock.Advance(later)
	peek := s.take(limiter.Hit{Key: key, Policy: to, Peek: true})[0]
	if peek.Remaining != remaining || peek.RetryAfter != retry {
		s.Errorf("%d remain, and the next passes after %s; want %d and %s", peek.Remaining, peek.RetryAfter, remaining,
			retry)
	}
	full := limiter.Hit{Key: key + "/full", Policy: to, N: 1}
	for allowed := true; allowed; {
		allowed = s.take(full)[0].Allowed
	}
	full.N, full.Peek = 0, true
	if most := s.take(full)[0].ResetAfter; peek.ResetAfter > most && !to.Core().PaysLater { // such a limit may owe more
		s.Errorf("fully available in %s, where a counter that is full is in %s", peek.ResetAfter, most)
	}
	for range remaining {
		s.want("+", limiter.Hit{Key: key, Policy: to, N: 1})
	}
	s.want("-", limiter.Hit{Key: key, Policy: to, N: 1})
	if remaining == 0 && to.Params().ChargeDenied == limiter.ChargeNone {
		s.clock.Advance(retry - us)
		s.want("-", limiter.Hit{Key: key, Policy: to, N: 1})
		s.clock.Advance(us)
		s.want("+", limiter.Hit{Key: key, Policy: to, N: 1})
	}
	return from, to
}

// runChanges checks each change, and that every algorithm has a change of its rate and a change of its window.
func runChanges(t *testing.T, fresh Fresh) {
	t.Helper()
	rates, windows := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(changes) {
		line, _, _ = strings.Cut(line, "#")
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			continue
		}
		fields := strings.Split(rest, " | ")
		algorithm, _, _ := strings.Cut(rest, " ")
		t.Run(algorithm+", "+name, func(t *testing.T) {
			s := &scenario{fixture: newFixture(t, fresh)}
			from, to := s.change(name, fields)
			rates[algorithm] = rates[algorithm] || from.Limit() != to.Limit()
			windows[algorithm] = windows[algorithm] || from.Window() != to.Window()
		})
	}
	for _, name := range step.Names(limiter.Algorithms()) {
		if !rates[name] || !windows[name] {
			t.Errorf("%s: changes.txt must change its rate and its window", name)
		}
	}
}
