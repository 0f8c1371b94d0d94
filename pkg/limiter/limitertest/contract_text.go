package limitertest

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// scenarios are parts of the contract. The head of contract.txt explains the format.
//
//go:embed contract.txt
var scenarios string

// runScenarios plays every part on a fresh store.
func runScenarios(t *testing.T, fresh Fresh) {
	t.Helper()
	for _, part := range strings.Split(scenarios, "\n== ")[1:] {
		title, text, _ := strings.Cut(part, "\n")
		name, words, _ := strings.Cut(title, ": EACH is ")
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, fresh)
			for word := range strings.SplitSeq(words, " ") {
				s := &scenario{fixture: f, each: word, limits: map[string]*limiter.Policy{}, taken: map[string]int64{}}
				for line := range strings.Lines(strings.ReplaceAll(text, "EACH", word)) {
					s.play(line)
				}
			}
		})
	}
}

// scenario plays a part of contract.txt.
type scenario struct {
	*fixture
	each   string // the word that replaces EACH, and the prefix of its keys
	limits map[string]*limiter.Policy
	taken  map[string]int64
}

func (s *scenario) play(line string) {
	s.Helper()
	line, _, _ = strings.Cut(line, "#")
	line = strings.TrimSpace(line)
	name, rule, isLimit := strings.Cut(line, " = ")
	asked, want, isRequest := strings.Cut(line, " -> ")
	switch {
	case line == "":
	case isLimit:
		s.limits[name] = s.limit(rule)
	case isRequest:
		if got := s.ask(asked); got != want {
			s.Errorf("%s %s -> %s, want %s", s.each, asked, got, want)
		}
	default:
		d, err := time.ParseDuration(line)
		if err != nil {
			s.Fatal(err)
		}
		s.clock.Advance(d)
	}
}

// limit parses a limit.
func (s *scenario) limit(text string) *limiter.Policy {
	s.Helper()
	words := strings.Fields(text)
	a, err := limiter.ParseAlgorithm(words[0])
	number, window, _ := strings.Cut(words[1], "/")
	in := limiter.Params{Algorithm: a, Limit: s.number(number), Window: s.time(window)}
	parameters := a.Parameters()
	for _, word := range words[2:] {
		name, value, _ := strings.Cut(word, ":")
		i := slices.Index(step.Names(parameters), name)
		switch {
		case name == "peek_at_limit":
			in.PeekAtLimit = true
		case name == "reserve":
			in.Reserve = s.number(value)
		case i < 0:
			err = errors.Join(err, fmt.Errorf("%s: %s has no parameter %s", text, a, name))
		case parameters[i].IsZone():
			in.TimeZone = zone(value)
		case parameters[i].IsTime():
			parameters[i].Set(&in, int64(s.time(value)))
		case parameters[i].Names == nil:
			parameters[i].Set(&in, s.number(value))
		case !slices.Contains(parameters[i].Names, value):
			err = errors.Join(err, fmt.Errorf("%s: %s is not %s", text, name, value))
		default:
			parameters[i].Set(&in, int64(slices.Index(parameters[i].Names, value)))
		}
	}
	if err != nil {
		s.Fatal(err)
	}
	return policy(s, in)
}

// ask decides a request, and returns the results that its line shows.
func (s *scenario) ask(text string) string {
	s.Helper()
	verb, rest, _ := strings.Cut(text, " ")
	show := map[string]func(limiter.Decision) any{
		"left":  func(d limiter.Decision) any { return d.Remaining },
		"waits": func(d limiter.Decision) any { return d.Wait },
		"reset": func(d limiter.Decision) any { return d.ResetAfter },
		"retry": func(d limiter.Decision) any {
			if d.RetryAfter == limiter.Never {
				return "never"
			}
			return d.RetryAfter
		},
	}[verb]
	if show == nil {
		show, rest = func(d limiter.Decision) any { return map[bool]string{true: "+", false: "-"}[d.Allowed] }, text
	}
	var hits []limiter.Hit
	var names, got []string
	for part := range strings.SplitSeq(rest, ", ") {
		hit, as := s.hit(strings.Fields(part))
		hits, names = append(hits, hit), append(names, as)
	}
	for i, d := range s.take(hits...) {
		s.taken[names[i]] = d.TakenAt
		got = append(got, fmt.Sprint(show(d)))
	}
	return strings.Join(got, " ")
}

// hit parses a hit, and the name under which its TakenAt is remembered.
func (s *scenario) hit(words []string) (h limiter.Hit, as string) {
	s.Helper()
	name, key, ok := strings.Cut(words[0], "/")
	if !ok {
		key = name
	}
	h = limiter.Hit{Key: s.each + key, Policy: s.limits[name], Peek: true}
	for _, word := range words[1:] {
		kind, value, _ := strings.Cut(word, ":")
		switch kind {
		case "shadow":
			h.Mode = limiter.Shadow
		case "quota":
			h.Mode = limiter.Quota
		case "group":
			h.Group = int(s.number(value))
		case "alone":
			h.ByItself = true
		case "as":
			as = value
		case "of":
			h.TakenAt = s.taken[value]
		case "or_oldest":
			h.OrOldest = true
		default:
			h.N, h.Peek = s.number(word), false
		}
	}
	return h, as
}

func (s *scenario) number(text string) int64 {
	s.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		s.Fatal(err)
	}
	return n
}

func (s *scenario) time(text string) time.Duration {
	s.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		s.Fatal(err)
	}
	return d
}
