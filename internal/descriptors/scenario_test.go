package descriptors_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// TestScenarios plays testdata/scenarios/*.txt. The README.md there says what a file contains.
func TestScenarios(t *testing.T) {
	casetest.Scenarios(t, func(t *testing.T, s *casetest.Scenario) {
		p := &player{}
		do := func(c casetest.Command) string { return strings.TrimSuffix(p.do(c), "\n") + "\n" }
		s.Play(t, do, "rules ...", "errors", "paths", "match ENTRIES", "allocates_nothing ENTRIES", "limits ENTRIES",
			"override REQUESTS WINDOW ENTRIES", "entries ...", "unordered ENTRIES", "key ...")
	})
}

// player has the rules of domain shop and their warnings, or their errors.
type player struct {
	shop *descriptors.Domain
	errs error
}

func (p *player) do(c casetest.Command) string {
	rest := strings.Join(c.Args, " ")
	switch c.Name {
	case "rules":
		return p.compile(c)
	case "errors":
		return fmt.Sprint(p.errs)
	case "paths":
		var all strings.Builder
		for _, r := range p.shop.Rules() {
			all.WriteString(r.Path + "\n")
		}
		return all.String()
	case "match", "allocates_nothing":
		es := casetest.Entries(rest)
		if n := testing.AllocsPerRun(100, func() { p.shop.Match(es) }); n != 0 && c.Name != "match" {
			c.Fatalf("allocates %v times", n)
		}
		if r := p.shop.Match(es); r != nil {
			return r.Path
		}
		return "none"
	case "limits":
		es := casetest.Entries(rest)
		return show(c, es, p.shop.Match(es).Limits...)
	case "override":
		es := casetest.Entries(strings.Join(c.Args[2:], " "))
		l, err := p.shop.Override(p.shop.Match(es), uint32(casetest.Parsed(c, strconv.Atoi, c.Args[0])),
			casetest.Parsed(c, time.ParseDuration, c.Args[1]))
		if err != nil {
			return "error: " + err.Error()
		}
		return show(c, es, l)
	case "entries":
		es, err := descriptors.ParseEntries(rest)
		if err != nil {
			return "error: " + err.Error()
		}
		return fmt.Sprintf("%q", es)
	case "unordered":
		es, r := p.shop.MatchUnordered(casetest.Parsed(c, descriptors.ParseEntries, rest))
		if r == nil {
			return "none"
		}
		return r.Path + " by " + descriptors.FormatEntries(es)
	case "key":
		terms, ok := descriptors.ParseKey(rest)
		if !ok {
			return "no key"
		}
		return fmt.Sprintf("%+q", terms)
	}
	return ""
}

// compile compiles the rules, for a process with --on-store-failure deny and the number of replicas, or in the first of
// the regions, if one of the two is given.
func (p *player) compile(c casetest.Command) string {
	process := descriptors.Process{}
	if len(c.Args) > 0 && strings.Contains(c.Args[0], "=") {
		process.Region, _, _ = strings.Cut(c.Args[0], "=")
		process.Regions = casetest.Parsed(c, descriptors.ParseRegions, c.Args[0])
	} else if len(c.Args) > 0 {
		process.OnStoreFailure, process.Replicas = descriptors.Deny, casetest.Parsed(c, strconv.Atoi, c.Args[0])
	}
	set, err := rulefile.CompileFor(process, []rulefile.File{
		{Name: "rules.yaml", Data: []byte("domain: shop\ndescriptors:\n" + c.Text)},
	})
	if p.errs = err; err == nil {
		p.shop, p.errs = set.Domain("shop"), set.Warnings()
	} else if process.Regions == nil {
		c.Fatalf("%v", err)
	}
	return c.Text
}

// show returns the limits' keys, modes, JSON, limits while the store fails, and, for windows of a calendar, when the
// window of noon on 1 July 2026 begins.
func show(c casetest.Command, es []descriptors.Entry, limits ...*descriptors.Limit) string {
	var all strings.Builder
	for _, l := range limits {
		text, err := json.Marshal(l)
		if err != nil {
			c.Fatalf("%v", err)
		}
		fmt.Fprintf(&all, "%s %s %s", l.AppendKey(nil, es), l.Rule.Mode, text)
		if l.Local != nil {
			fmt.Fprintf(&all, " local %d", l.Local.Limit())
		}
		noon := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
		if edges := limit.Edges(l.Policy, noon); edges != nil {
			fmt.Fprintf(&all, " from %s", time.UnixMicro(edges[1]).UTC().Format(time.RFC3339))
		}
		all.WriteByte('\n')
	}
	return all.String()
}
