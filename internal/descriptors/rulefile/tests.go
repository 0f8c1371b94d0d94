package rulefile

import (
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/words"
)

// TestFile is a file of tests for rules. docs/operate/testing.md explains its fields.
type TestFile struct {
	Name   string
	Rules  []string // paths, relative to the file's directory
	Domain string
	Start  time.Time // virtual time at which each test starts
	Tests  []*TestCase

	ChargeEach, AllowPeekAtLimit, LenientRules bool // flags of serve
}

// TestCase is one test. Its steps run in order, beginning with unused counters.
type TestCase struct {
	Name  string // by default, its position
	At    descriptors.Position
	Steps []*TestStep
}

// TestStep is a request that is sent Times times.
type TestStep struct {
	At      descriptors.Position
	Since   time.Duration // time since the start of the test, not before the previous step
	Request [][]descriptors.Entry
	Cost    int64 // cost of each descriptor
	Times   int64
	Start   string // name under which the tokens of admitted requests are kept, or ""
	End     string // name of the requests that this step ends, or ""
	// Expect has the expected values by their fields: durations in Go's form, numbers in decimal.
	Expect map[string]string
}

// ReadTests reads a test file. The error is descriptors.Errors with all errors in the file.
func ReadTests(f File) (*TestFile, error) {
	b := descriptors.NewBuilder(descriptors.Process{})
	r, t := newReader(f, b), &TestFile{Name: f.Name, Start: time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)}
	switch roots, err := r.parse(f.Data); {
	case err != nil:
		r.reportSyntax(err)
	case len(roots) != 1:
		r.Errorf(r.start(), "a test file must have one YAML document, got %d", len(roots))
	default:
		readFields(r, roots[0], r.testFileSchema(), t)
		if len(t.Rules)*len(t.Tests) == 0 && r.Problems() == 0 {
			r.Errorf(r.start(), "write rules: with paths of rule files, and tests: with at least one test")
		}
	}
	_, err := b.Build()
	return t, err
}

func (r *reader) testFileSchema() *schema[TestFile] {
	s, flags, test := newSchema[TestFile]("a test file"), newSchema[TestFile]("flags"), newSchema[TestCase]("a test")
	steps := r.testStepSchema()
	s.required(r, "domain", "the domain of Envoy's filter", func(t *TestFile) *string { return &t.Domain })
	s.field("rules", nil, func(n *yaml.Node, t *TestFile) {
		r.list(n, "rules", func(item *yaml.Node) { t.Rules = append(t.Rules, r.text(item)) })
	})
	s.field("start", nil, func(n *yaml.Node, t *TestFile) {
		var err error
		if t.Start, err = time.Parse(time.RFC3339, r.text(n)); err != nil {
			r.Errorf(r.at(n), "start must be a time like 2026-01-01T00:00:00Z")
		}
	})
	s.field("flags", nil, func(n *yaml.Node, t *TestFile) { readFields(r, n, flags, t) })
	flags.field("charge_each", nil, func(n *yaml.Node, t *TestFile) { t.ChargeEach = r.boolean(n) })
	flags.field("allow_peek_at_limit", nil, func(n *yaml.Node, t *TestFile) { t.AllowPeekAtLimit = r.boolean(n) })
	flags.field("lenient_rules", nil, func(n *yaml.Node, t *TestFile) { t.LenientRules = r.boolean(n) })
	s.field("tests", nil, func(n *yaml.Node, t *TestFile) {
		r.list(n, "tests", func(item *yaml.Node) {
			c := &TestCase{At: r.at(item)}
			c.Name = c.At.String()
			readFields(r, item, test, c)
			t.Tests = append(t.Tests, c)
		})
	})
	test.must, test.about = "steps", "the requests, in the order of time"
	test.field("name", nil, func(n *yaml.Node, c *TestCase) { c.Name = r.text(n) })
	test.field("steps", nil, func(n *yaml.Node, c *TestCase) {
		since, before := time.Duration(0), r.Problems()
		r.list(n, "steps", func(item *yaml.Node) {
			s := &TestStep{At: r.at(item), Since: since, Cost: 1, Times: 1, Expect: map[string]string{}}
			readFields(r, item, steps, s)
			since, c.Steps = s.Since, append(c.Steps, s)
		})
		switch {
		case len(c.Steps) == 0:
			r.Errorf(r.at(n), "steps is empty; write steps: with at least one request")
		case r.Problems() == before && !slices.ContainsFunc(c.Steps, func(s *TestStep) bool { return len(s.Expect) > 0 }):
			r.Errorf(r.at(n), "this test cannot fail; write expect: in at least one step, as in expect: {decision: denied}")
		}
	})
	return s
}

func (r *reader) testStepSchema() *schema[TestStep] {
	s, expect := newSchema[TestStep]("a step"), newSchema[TestStep]("expect")
	s.must, s.about = "request", "a descriptor, key=value,key=value, or a list of descriptors"
	s.field("at", nil, func(n *yaml.Node, s *TestStep) {
		before := s.Since
		if s.Since = readName(r, n, words.ParseDuration); s.Since < before || s.Since > step.MaxWindow {
			r.Errorf(r.at(n), "at must be between %s, as in the step before, and %s", before, step.MaxWindow)
		}
	})
	s.field("request", nil, func(n *yaml.Node, s *TestStep) {
		if resolve(n).Kind != yaml.SequenceNode {
			n = &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{n}}
		}
		r.list(n, "request", func(item *yaml.Node) {
			s.Request = append(s.Request, readName(r, item, descriptors.ParseEntries))
		})
	})
	s.field("cost", nil, func(n *yaml.Node, s *TestStep) { s.Cost = r.integer(n, -maxNumber, maxNumber) })
	s.field("times", nil, func(n *yaml.Node, s *TestStep) { s.Times = r.integer(n, 1, 1_000_000) })
	s.field("start", nil, func(n *yaml.Node, s *TestStep) { s.Start = r.text(n) })
	s.field("end", nil, func(n *yaml.Node, s *TestStep) { s.End = r.text(n) })
	s.field("expect", nil, func(n *yaml.Node, s *TestStep) { readFields(r, n, expect, s) })
	expected := func(name string, read func(n *yaml.Node) string) {
		expect.field(name, nil, func(n *yaml.Node, s *TestStep) {
			if !isNull(n) {
				s.Expect[name] = read(n)
			}
		})
	}
	duration := func(n *yaml.Node) string { return readName(r, n, words.ParseDuration).String() }
	expected("decision", func(n *yaml.Node) string {
		readName(r, n, oneOf("allowed", "denied"))
		return r.text(n)
	})
	expected("by", r.text)
	expected("remaining", func(n *yaml.Node) string { return strconv.FormatInt(r.integer(n, 0, maxNumber), 10) })
	expected("retry_after", duration)
	expected("delay", duration)
	return s
}
