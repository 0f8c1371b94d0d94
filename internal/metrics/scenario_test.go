package metrics_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// TestScenarios plays testdata/scenarios/*.txt. The README.md there says what a file contains.
func TestScenarios(t *testing.T) {
	casetest.Scenarios(t, func(t *testing.T, s *casetest.Scenario) {
		s.Play(t, (&player{}).do, "metrics ...", "rules SET", "decided LIMIT OUTCOME HITS ...", "override LIMIT TIMES",
			"by_envoys LIMIT OUTCOME HITS", "reported_by_envoys ALLOWED DENIED", "answered SET DOMAIN RESULT", "requested",
			"store_failed", "rejected CODE", "ended LIMIT CHARGED REAL", "not_ended LIMIT", "reservation LIMIT", "sample",
			"decisions LIMIT", "series PREFIX ...")
	})
}

// player counts decisions by rules.
type player struct {
	*metrics.Metrics

	sets map[string]*descriptors.Set // by name
}

func (p *player) do(c casetest.Command) string {
	switch c.Name {
	case "metrics":
		p.start(c)
	case "rules":
		p.sets[c.Args[0]] = casetest.Compile(c.T, c.Text)
		p.Prepare(p.sets[c.Args[0]])
		return c.Text
	case "decided":
		p.decided(c)
	case "override":
		for n := range uint32(casetest.Parsed(c, strconv.Atoi, c.Args[1])) {
			l, err := p.limit(c).Rule.Override(n, time.Minute)
			if err != nil {
				c.Fatalf("%v", err)
			}
			p.Decided(l, decide.Allowed, 1, &nearly)
		}
	case "by_envoys":
		p.DecidedByEnvoys(p.limit(c), outcome(c), uint64(number(c, 2)))
	case "reported_by_envoys":
		p.ReportedByEnvoys(uint64(number(c, 0)), uint64(number(c, 1)))
	case "answered":
		p.Answered(p.sets[c.Args[0]].Domain(c.Args[1]), c.Args[2] == "denied")
	case "requested":
		p.Requested(0)
	case "store_failed":
		p.StoreFailed(limiter.ErrUnavailable)
	case "rejected":
		p.Rejected(codes.Code(number(c, 0)))
	case "ended":
		p.Ended(p.limit(c), number(c, 1), number(c, 2))
	case "not_ended":
		p.NotEnded(p.limit(c))
	case "reservation":
		return shown(c, p.Reservation(p.limit(c)))
	case "sample":
		var all []string
		total := p.Sample(func(l adminapi.LimitCounts) { all = append(all, shown(c, l)) })
		slices.Sort(all)
		return strings.Join(all, "") + "total " + shown(c, total)
	case "decisions":
		return fmt.Sprintln(p.Decisions(p.limit(c)))
	case "series":
		return p.series(c)
	}
	return ""
}

func (p *player) start(c casetest.Command) {
	o := metrics.Options{MaxRules: 100, NearLimitRatio: 0.8}
	for _, arg := range c.Args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "max_rules":
			o.MaxRules = casetest.Parsed(c, strconv.Atoi, value)
		case "near":
			o.NearLimitRatio = casetest.Parsed(c, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }, value)
		case "classic":
			o.Classic = true
		default:
			c.UnknownOption(arg)
		}
	}
	p.Metrics, p.sets = metrics.New(o), map[string]*descriptors.Set{}
}

// limit returns the limit SET.NUMBER, or the limit of a request that no rule matches.
func (p *player) limit(c casetest.Command) *descriptors.Limit {
	set, n, ok := strings.Cut(c.Args[0], ".")
	if !ok {
		return &descriptors.Limit{ID: -1}
	}
	return p.sets[set].Limits()[casetest.Parsed(c, strconv.Atoi, n)]
}

func outcome(c casetest.Command) decide.Outcome {
	all := decide.Outcomes()
	i := slices.IndexFunc(all, func(o decide.Outcome) bool { return o.String() == c.Args[1] })
	if i < 0 {
		c.Fatalf("%q is no outcome", c.Args[1])
	}
	return all[i]
}

func number(c casetest.Command, i int) int64 {
	return int64(casetest.Parsed(c, strconv.Atoi, c.Args[i]))
}

// decided counts a decision: LIMIT OUTCOME HITS, and what the store said.
func (p *player) decided(c casetest.Command) {
	o := outcome(c)
	d := limiter.Decision{Allowed: !o.Unfit()}
	for _, arg := range c.Args[3:] {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "remaining":
			d.Remaining = int64(casetest.Parsed(c, strconv.Atoi, value))
		case "cached":
			d.Cached = true
		case "token":
			d.TakenAt = 1
		default:
			c.Fatalf("%q is nothing that a store says", arg)
		}
	}
	p.Decided(p.limit(c), o, number(c, 2), &d)
}

// series returns the series whose names begin with one of the words, without buckets of histograms.
func (p *player) series(c casetest.Command) string {
	var all []string
	for name, value := range scrape(c.T, p.Metrics) {
		isOf := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if slices.ContainsFunc(c.Args, isOf) && !strings.Contains(name, "_bucket{") {
			all = append(all, name+" "+value+"\n")
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

func shown(c casetest.Command, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		c.Fatalf("%v", err)
	}
	return string(text) + "\n"
}
