package rlqs

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// TestScenarios plays testdata/scenarios/*.txt in virtual time. The README.md there says what a file contains.
func TestScenarios(t *testing.T) {
	casetest.WithoutRace(t)
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range strings.Split("\n"+string(text), "\n== ")[1:] {
			title, body, _ := strings.Cut(s, "\n")
			playEach(t, title, strings.Split(body, "\n"))
		}
	}
}

// playEach plays a scenario for each combination of the values that its lines with "for" list.
func playEach(t *testing.T, title string, lines []string) {
	for i, line := range lines {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "for" {
			continue
		}
		for _, tuple := range words[2:] {
			var pairs []string
			values := strings.Split(tuple, ",")
			for n, name := range strings.Split(words[1], ",") {
				pairs = append(pairs, name, values[n])
			}
			rest := strings.NewReplacer(pairs...).Replace(strings.Join(lines[i+1:], "\n"))
			playEach(t, title+" "+tuple, strings.Split(rest, "\n"))
		}
		return
	}
	t.Run(title, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := player{fleet: newFleet(t, nil, 0), limits: map[string]limiter.Hit{}, of: map[BucketID][]string{}}
			p.rules.set(p.resolve)
			defer p.close()
			for _, line := range lines {
				words := strings.Fields(line)
				if len(words) == 0 || words[0] == "#" {
					continue
				}
				p.line = line
				do, ok := commands[words[0]]
				if !ok {
					t.Fatalf("%q is no command", line)
				}
				do(&p, words[1:]...)
			}
		})
	})
}

// player plays a scenario.
type player struct {
	*fleet

	line      string
	before    map[string]float64 // figures when it was played last
	limits    map[string]limiter.Hit
	of        map[BucketID][]string // names of limits; a bucket that it does not have has the limit k
	onFailure descriptors.OnStoreFailure
}

// resolve finds the limits of a bucket. The limit "refused" gets no assignment.
func (p *player) resolve(_ string, id BucketID) (t Target) {
	names, ok := p.of[id]
	if !ok {
		names = []string{"k"}
	}
	for _, name := range names {
		h, ok := p.limits[name]
		if name == "refused" {
			return Target{Refused: "rules.yaml:7: no"}
		} else if ok {
			l := &descriptors.Limit{OnStoreFailure: p.onFailure}
			if p.onFailure == descriptors.Local {
				l.Local = perSecond(p.t, limiter.Funnel, 25)
			}
			t.Hits, t.Limits = append(t.Hits, h), append(t.Limits, l)
		}
	}
	return t
}

func parsed[T any](p *player, parse func(string) (T, error), text string) T {
	v, err := parse(text)
	if err != nil {
		p.t.Fatalf("%s: %v", p.line, err)
	}
	return v
}

func (p *player) duration(text string) time.Duration { return parsed(p, time.ParseDuration, text) }

func (p *player) number(text string) float64 {
	return parsed(p, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }, text)
}

// envoy returns an Envoy by its number from 1 on.
func (p *player) envoy(number string) *fakeEnvoy { return p.envoys[int(p.number(number))-1] }

// commands are the first words of lines, and what they do. testdata/scenarios/README.md says what their arguments are.
var commands = map[string]func(p *player, args ...string){
	"limit": (*player).limit,
	"rule":  func(p *player, args ...string) { p.of[BucketID(args[0])] = strings.Split(args[1], "+") },
	"on_store_failure": func(p *player, args ...string) {
		p.onFailure = descriptors.OnStoreFailure(slices.Index([]string{"local", "allow", "deny", "error"}, args[0]))
	},
	"changed": func(p *player, _ ...string) { p.keeper.Changed() },
	"reset": func(p *player, _ ...string) {
		p.store.Reset("k")
		p.keeper.Changed()
	},
	"envoys": func(p *player, args ...string) {
		if p.keeper == nil {
			p.startKeeper()
		}
		for range int(p.number(args[0])) {
			if e := p.add(); len(args) > 1 {
				e.host = args[1]
			}
		}
	},
	"replica": (*player).replica,
	"kill":    func(p *player, _ ...string) { p.end(0, true) },
	"remove":  func(p *player, _ ...string) { p.end(len(p.running)-1, false) },
	"stop":    func(p *player, _ ...string) { p.keeper.Stop(p.t.Context()) },
	"sleep":   func(p *player, args ...string) { time.Sleep(p.duration(args[0])) },
	"want":    (*player).wants,
	"calls":   func(p *player, args ...string) { p.calls = p.number(args[0]) },
	"drain":   func(p *player, _ ...string) { p.ask(p.left(p.limits["k"])) },
	"deny":    func(p *player, _ ...string) { p.denyUnassigned = true },
	"late":    func(p *player, args ...string) { p.store.late = lateUpTo(p.duration(args[0])) },
	"store":   func(p *player, args ...string) { p.store.fail(map[string]error{"fails": errors.New("gone")}[args[0]]) },
	"delay": func(p *player, args ...string) {
		for _, e := range p.envoys {
			e.delay = p.duration(args[0])
		}
	},
	"unreachable": func(p *player, _ ...string) { p.isUnreachable = true },
	"break": func(p *player, args ...string) {
		for i, e := range p.envoys {
			if args[0] == "all" || args[0] == strconv.Itoa(i+1) {
				e.disconnect()
			}
		}
	},
	"report": func(p *player, args ...string) {
		e, allowed, denied := p.envoy(args[0]), p.number(args[1]), p.number(args[2])
		if e.stream == nil {
			e.connect()
		}
		e.stream.Report([]Usage{{ID: "b", Allowed: uint64(allowed), Denied: uint64(denied), Elapsed: p.duration(args[3])}})
	},
	"play":  (*player).playFor,
	"total": func(p *player, args ...string) { p.compare(nil, args...) },
	"has":   (*player).has,
	"rate":  func(p *player, args ...string) { p.check("rate", p.assigned(BucketID(args[0])), args[1]) },
	"used": func(p *player, args ...string) {
		p.check("used", float64(p.limits["k"].Policy.Limit()-p.left(p.limits["k"])), args[0])
	},
	"books": func(p *player, args ...string) {
		p.check("books", float64(len(p.keeper.books)+len(p.keeper.counters)), args[0])
	},
	"last": func(p *player, args ...string) {
		p.check("passed", float64(p.between(p.now()-p.duration(args[0]), p.now())), args[1])
	},
	"stats": func(p *player, args ...string) {
		st := reflect.ValueOf(p.keeper.Stats())
		for _, arg := range args {
			name, want, _ := strings.Cut(arg, "=")
			p.check(name, p.number(fmt.Sprint(st.FieldByName(name))), want)
		}
	},
}

// limit sets a limit: NAME ALGORITHM N/WINDOW, and shadow or quota. Of N/s, the window is the shortest that the
// algorithm may have.
func (p *player) limit(args ...string) {
	a := parsed(p, limiter.ParseAlgorithm, args[1])
	n, window, _ := strings.Cut(args[2], "/")
	h := limiter.Hit{Key: args[0]}
	if len(args) > 3 {
		h.Mode = map[string]limiter.Mode{"shadow": limiter.Shadow, "quota": limiter.Quota}[args[3]]
	}
	if window == "s" {
		h.Policy = perSecond(p.t, a, int64(p.number(n)))
	} else {
		h.Policy = policyOf(p.t, limiter.Params{
			Algorithm: a, Limit: int64(p.number(n)), Window: p.duration(window), ChargeDenied: limiter.ChargeNone,
		})
	}
	p.limits[args[0]] = h
}

// wants sets how many requests come a second: RATE to each Envoy, ENVOY RATE, or ENVOY BUCKET RATE.
func (p *player) wants(args ...string) {
	rate := p.number(args[len(args)-1])
	switch len(args) {
	case 1:
		p.want(rate)
	case 2:
		p.envoy(args[0]).demand["b"] = steady(rate)
	default:
		p.envoy(args[0]).demand[BucketID(args[1])] = steady(rate)
	}
}

// replica starts a keeper whose Envoys get that many requests a second, RATE+RATE; "-" starts none.
func (p *player) replica(args ...string) {
	if args[0] == "-" {
		return
	}
	p.startKeeper()
	for rate := range strings.SplitSeq(args[0], "+") {
		p.add().demand["b"] = steady(p.number(rate))
	}
}

// end ends a keeper. Its Envoys go with it, or on with what they have, and to the next keeper with their next report.
func (p *player) end(i int, isKilled bool) {
	gone := p.running[i]
	gone.end()
	p.running = slices.Delete(p.running, i, i+1)
	p.keeper = p.running[len(p.running)-1].Keeper
	p.envoys = slices.DeleteFunc(p.envoys, func(e *fakeEnvoy) bool {
		if e.keeper == gone.Keeper {
			e.keeper, e.stream, e.inbox = p.running[0].Keeper, nil, nil
			return !isKilled
		}
		return false
	})
}

// figures are what has passed and was charged until now, in all (passed), by one Envoy (passed#1) and by the Envoys of
// one replica (passed@1).
func (p *player) figures() map[string]float64 {
	charged := p.store.sum()
	all := map[string]float64{
		"passed": float64(p.passed), "covered": float64(p.covered), "charged": float64(charged), "calls": float64(p.beside),
		"all": float64(p.passed + p.beside), "unused": float64(charged - p.passed), "uncharged": float64(p.covered - charged),
		"messages": float64(p.messages),
	}
	p.mu.Lock()
	maps.Copy(all, p.decided)
	p.mu.Unlock()
	for i, e := range p.envoys {
		all[fmt.Sprintf("passed#%d", i+1)] = float64(e.passed)
		for n, k := range p.running {
			if e.keeper == k.Keeper {
				all[fmt.Sprintf("passed@%d", n+1)] += float64(e.passed)
			}
		}
	}
	return all
}

// playFor plays DURATION, or so many times NxDURATION, and compares figures since the last time: FIGURE=RANGE.
func (p *player) playFor(args ...string) {
	times, each, ok := strings.Cut(args[0], "x")
	if !ok {
		times, each = "1", args[0]
	}
	for range int(p.number(times)) {
		p.play(p.duration(each))
		p.compare(p.before, args[1:]...)
		p.before = p.figures()
	}
}

// compare compares figures since a moment: FIGURE=RANGE, or FIGURE=FIGURE.
func (p *player) compare(since map[string]float64, args ...string) {
	now := p.figures()
	for _, arg := range args {
		name, want, _ := strings.Cut(arg, "=")
		if other, ok := now[want]; ok {
			want = fmt.Sprint(other - since[want])
		}
		p.check(name, now[name]-since[name], want)
	}
}

// check compares a figure with a range: LOW..HIGH, of which each may be left out, or one figure.
func (p *player) check(what string, got float64, want string) {
	least, most := math.Inf(-1), math.Inf(1)
	low, high, isRange := strings.Cut(want, "..")
	if !isRange {
		high = low
	}
	if low != "" {
		least = p.number(low)
	}
	if high != "" {
		most = p.number(high)
	}
	if got < least || got > most {
		p.t.Errorf("%s: %s is %g, want %s", p.line, what, got, want)
	}
}

// has compares what an Envoy has: ENVOY or all, a strategy or nothing, and rate=RANGE of a token bucket.
func (p *player) has(args ...string) {
	for i, e := range p.envoys {
		if args[0] != "all" && args[0] != strconv.Itoa(i+1) {
			continue
		}
		got, rate := "nothing", 0.0
		if b := e.buckets["b"]; b != nil && b.isAssigned {
			got, rate = []string{"allow_all", "deny_all", "token_bucket"}[b.has.Strategy], b.has.rate()
		}
		for _, arg := range args[1:] {
			if want, ok := strings.CutPrefix(arg, "rate="); ok {
				p.check("rate", rate, want)
			} else if got != arg {
				p.t.Errorf("%s: Envoy %d has %s", p.line, i+1, got)
			}
		}
	}
}
