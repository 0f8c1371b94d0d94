package cli

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/offline"
	"github.com/weir-ratelimit/weir/internal/rules"
)

type testCmd struct {
	Files []string `arg:"" optional:"" name:"file" default:"rules.test.yaml" help:"Test files."`
	Only  string   `name:"run" placeholder:"TEXT" help:"Run only tests whose names contain TEXT."`
	JUnit string   `name:"junit" placeholder:"FILE" help:"Also write the results to FILE, as JUnit XML."`
}

func (*testCmd) Help() string {
	return `Runs the tests in test files: it decides their requests in virtual time, with counters in memory, and shows each
decision that differs from the expected one. docs/operate/testing.md explains test files.

Exit codes: 0 every test passed, 1 a test failed, 2 no result: a wrong test file, wrong rules, or a wrong command line.

Examples:

    weir test
    weir test shop.test.yaml api.test.yaml --junit results.xml`
}

// testResults are the results of all test files. Their XML is that of JUnit. Its readers need the names of the suites
// and classes: without them, some stop, and others take tests with the same name in two files for one.
type testResults struct {
	XMLName xml.Name    `xml:"testsuites"`
	Count   int         `xml:"tests,attr"`
	Failed  int         `xml:"failures,attr"`
	Files   []testSuite `xml:"testsuite"`
}

type testSuite struct {
	File   string       `xml:"name,attr"`
	Count  int          `xml:"tests,attr"`
	Failed int          `xml:"failures,attr"`
	Tests  []testResult `xml:"testcase"`
}

type testResult struct {
	Name    string       `xml:"name,attr"`
	Class   string       `xml:"classname,attr"` // the file
	File    string       `xml:"file,attr"`
	Line    int          `xml:"line,attr"`
	Failure *testFailure `xml:"failure"` // nil if the test passed
}

type testFailure struct {
	Message string `xml:"message,attr"` // first difference
	Text    string `xml:",chardata"`
}

// Run prints the failed tests to stdout.
func (c *testCmd) Run(ctx context.Context, io streams) error {
	var all testResults
	for _, path := range c.Files {
		err := c.run(ctx, io, path, &all)
		if errs, ok := errors.AsType[descriptors.Errors](err); ok {
			fmt.Fprintf(io.err, "%s\n%s\n", errs, count(errs.Count(), "error"))
			return errNoAnswer
		}
		if err != nil {
			return noAnswer(io, err)
		}
	}
	if all.Count == 0 {
		return usage(fmt.Errorf("--run: no test has %q in its name", c.Only))
	}
	if c.JUnit != "" {
		text, err := xml.MarshalIndent(&all, "", "  ")
		text = fmt.Appendf(nil, "%s%s\n", xml.Header, text)
		if err := errors.Join(err, os.WriteFile(c.JUnit, text, 0o644)); err != nil { //nolint:gosec // other programs read it
			return noAnswer(io, err)
		}
	}
	fmt.Fprintf(io.out, "%s, %d failed\n", count(all.Count, "test"), all.Failed)
	if all.Failed > 0 {
		return errReported
	}
	return nil
}

// run runs the tests of a file, prints the failed tests, and adds the results to all.
func (c *testCmd) run(ctx context.Context, io streams, path string, all *testResults) error {
	data, err := os.ReadFile(path) //nolint:gosec // the user has given the path
	if err != nil {
		return err
	}
	f, err := rulefile.ReadTests(rulefile.File{Name: path, Data: data})
	if err != nil {
		return err
	}
	for i, name := range f.Rules {
		if !filepath.IsAbs(name) {
			f.Rules[i] = filepath.Join(filepath.Dir(path), name)
		}
	}
	files, err := readRules(ctx, io, f.Rules...)
	if err != nil {
		return fmt.Errorf("%s: rules: %w", path, err)
	}
	set, err := rules.Compile(descriptors.Process{PeekAtLimit: f.AllowPeekAtLimit, Lenient: f.LenientRules}, files)
	if err != nil {
		return err
	}
	suite := testSuite{File: path}
	for _, t := range f.Tests {
		if !strings.Contains(t.Name, c.Only) {
			continue
		}
		failure, err := offline.Test(ctx, f, t, set)
		if err != nil {
			return err
		}
		result := testResult{Name: t.Name, Class: path, File: path, Line: t.At.Line}
		if suite.Count++; failure != "" {
			suite.Failed++
			fmt.Fprintf(io.out, "FAIL %s\n%s", t.Name, failure)
			result.Failure = &testFailure{strings.TrimSpace(strings.Split(failure, "\n")[1]), failure}
		}
		suite.Tests = append(suite.Tests, result)
	}
	all.Count, all.Failed, all.Files = all.Count+suite.Count, all.Failed+suite.Failed, append(all.Files, suite)
	return nil
}
