package rules_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
)

// TestScenarios plays testdata/scenarios/*.txt. The README.md there says what a file contains.
func TestScenarios(t *testing.T) {
	casetest.Scenarios(t, func(t *testing.T, s *casetest.Scenario) {
		t.Chdir(t.TempDir())
		p := &player{}
		s.Play(t, func(c casetest.Command) string {
			answer := p.do(c) + p.log.String()
			p.log.Reset()
			return moments.ReplaceAllString(answer, "$1...")
		}, "write FILE", "remove FILE", "check ...", "start ...", "reload", "print")
	})
}

// moments are what differs from run to run.
var moments = regexp.MustCompile(`(since |took=)[^ :]+(:\d\d:\d\dZ)?`)

// player plays what becomes of rule files.
type player struct {
	rules *rules.Rules
	log   strings.Builder
}

func (p *player) do(c casetest.Command) string {
	switch c.Name {
	case "write":
		if err := os.MkdirAll(filepath.Dir(c.Args[0]), 0o755); err != nil {
			c.Fatalf("%v", err)
		}
		if err := os.WriteFile(c.Args[0], []byte(c.Text), 0o600); err != nil {
			c.Fatalf("%v", err)
		}
		return c.Text
	case "remove":
		if err := os.Remove(c.Args[0]); err != nil {
			c.Fatalf("%v", err)
		}
	case "start":
		return p.start(c)
	case "reload":
		if err := p.rules.Reload(c.Context()); err != nil {
			return "error: " + err.Error() + "\n"
		}
	case "print":
		return p.print(c)
	case "check":
		return check(c)
	}
	return ""
}

// start starts a process with the rules in the folder rules.
func (p *player) start(c casetest.Command) string {
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	config := rules.Config{Rules: []string{"rules"}, Settle: time.Millisecond}
	for _, option := range c.Args {
		*casetest.Chosen(c, map[string]*bool{
			"allow_empty_rules": &config.AllowEmptyRules, "rules_every_file": &config.RulesEveryFile,
		}, option) = true
	}
	var err error
	p.rules, err = rules.New(c.Context(), rules.Options{
		Config: config,
		Log:    slog.New(slog.NewTextHandler(&p.log, &slog.HandlerOptions{ReplaceAttr: withoutTime})),
	})
	if err != nil {
		c.Fatalf("%v", err)
	}
	// A part of the process hears of rules before they are in force, and after.
	inForce := func() int {
		if set := p.rules.Set(); set != nil {
			return len(set.Limits())
		}
		return 0
	}
	prepare := func(next *descriptors.Set) {
		fmt.Fprintf(&p.log, "before: %d of %d limits\n", inForce(), len(next.Limits()))
	}
	after := func() { fmt.Fprintf(&p.log, "after: %d limits\n", inForce()) }
	if err := p.rules.Load(c.Context(), prepare, after, after); err != nil {
		return "error: " + err.Error() + "\n"
	}
	return ""
}

// print shows what /readyz, GET /rules and metrics say.
func (p *player) print(c casetest.Command) string {
	s, m := p.rules.Status(), partnertest.Series(c.T, p.rules.Metrics()...)
	out := fmt.Sprintf("ready: %v\n", p.rules.Ready(c.Context()))
	if note := p.rules.Note(); note != "" {
		out += note + "\n"
	}
	ok, refused := m[`weir_rules_loads_total{result="ok"}`], m[`weir_rules_loads_total{result="refused"}`]
	out += fmt.Sprintf("%s loads, %s refused, refused now %s\n", ok, refused, m["weir_rules_refused"])
	if ok != m["ratelimit_service_config_load_success"] || refused != m["ratelimit_service_config_load_error"] ||
		s.Hash != "" && m[`weir_rules_info{hash="`+s.Hash+`"}`] != "1" ||
		(s.Hash == "") != (m["weir_rules_last_load_timestamp_seconds"] == "0") {
		c.Fatalf("metrics disagree: %v", m)
	}
	out += fmt.Sprintf("%d files, %d warnings, of which %d are shown\n", len(s.Files), s.WarningCount, len(s.Warnings))
	return out + fmt.Sprintf("while the store fails: %s; redis-cell: %q\n", p.rules.Effects(""), p.rules.RedisCellStores())
}

// check returns the findings of weir check in files, for people and for GitHub.
func check(c casetest.Command) string {
	stdin, err := os.Open("stdin") // which the path - stands for
	if err == nil {
		defer stdin.Close() //nolint:errcheck // it was only read
	}
	files, err := rules.ReadFiles(c.Context(), stdin, c.Args...)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	f, err := rules.Check(descriptors.Process{}, files)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var out strings.Builder
	for i := range f.Problems {
		f.Problems[i].Text(&out)
	}
	f.GitHub(&out)
	fmt.Fprintf(&out, "%d files, %d domains, %d rules, %d limits: %d errors, %d warnings, ok %t\n",
		f.Files, f.Domains, f.Rules, f.Limits, f.Errors, f.Warnings, f.OK)
	return out.String()
}
