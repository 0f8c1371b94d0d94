package rules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Findings has the errors and warnings of rule files, in the JSON form of weir check --format json.
type Findings struct {
	OK       bool      `json:"ok"` // there are no errors
	Files    int       `json:"files"`
	Domains  int       `json:"domains"` // Domains, Rules and Limits are 0 if there are errors
	Rules    int       `json:"rules"`
	Limits   int       `json:"limits"`
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Problems []Problem `json:"problems"`
}

// Problem is an error or a warning.
type Problem struct {
	File     string `json:"file"`
	Line     int    `json:"line"`
	Column   int    `json:"column"` // in characters; the first is 1
	Severity string `json:"severity"`
	Code     string `json:"code"`
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`   // suggestion
	Source   string `json:"source,omitempty"` // text of the line, up to maxSource bytes
}

// maxSource is the maximum length in bytes of a line that is shown. A file may be a single line of many megabytes.
const maxSource = 200

// The severities of a problem, named as in GitHub.
const (
	severityError   = "error"
	severityWarning = "warning"
)

// codeInvalid is the code of errors that have no code of their own.
const codeInvalid = "invalid"

// Check compiles the files with the settings of a process. The checks in further run only on rules that compile, and
// may be nil. The error is not a finding about the files.
func Check(
	process descriptors.Process, files []reload.File,
	further ...func(*descriptors.Set) (errs, warnings descriptors.Errors),
) (*Findings, error) {
	f := &Findings{Files: len(files), Problems: []Problem{}}
	set, err := Compile(process, files)
	if errs := (descriptors.Errors{}); errors.As(err, &errs) {
		f.add(files, severityError, errs)
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	f.OK, f.Domains, f.Limits = true, len(set.Domains()), len(set.Limits())
	for _, d := range set.Domains() {
		f.Rules += len(d.Rules())
	}
	f.add(files, severityWarning, set.Warnings())
	for _, check := range further {
		errs, warnings := check(set)
		f.add(files, severityError, errs)
		f.add(files, severityWarning, warnings)
	}
	f.OK = f.Errors == 0
	return f, nil
}

func (f *Findings) add(files []reload.File, severity string, errs descriptors.Errors) {
	if severity == severityError {
		f.Errors += errs.Count()
	} else {
		f.Warnings += errs.Count()
	}
	lines := map[string][][]byte{}
	for _, file := range files {
		lines[file.Name] = bytes.Split(file.Data, []byte("\n"))
	}
	for _, e := range errs {
		p := Problem{
			File: e.File, Line: e.Line, Column: e.Column, Severity: severity, Code: cmp.Or(e.Code, codeInvalid), Message: e.Msg,
		}
		if i := strings.LastIndex(e.Msg, "; "); i >= 0 {
			p.Message, p.Hint = e.Msg[:i], e.Msg[i+2:]
		}
		if of := lines[e.File]; e.Line <= len(of) && e.More == 0 && len(of[e.Line-1]) <= maxSource {
			p.Source = strings.ToValidUTF8(strings.TrimRight(string(of[e.Line-1]), "\r"), "\ufffd")
		}
		f.Problems = append(f.Problems, p)
	}
}

// Text writes the problem for people, with its line and a caret below its column.
func (p *Problem) Text(w io.Writer) {
	fmt.Fprintf(w, "%s:%d:%d: %s: %s\n", p.File, p.Line, p.Column, p.Severity, p.Message)
	number := strconv.Itoa(p.Line)
	margin := strings.Repeat(" ", len(number))
	if line := []rune(p.Source); len(line) > 0 {
		indent := strings.Map(func(c rune) rune {
			if c == '\t' {
				return c
			}
			return ' '
		}, string(line[:min(p.Column-1, len(line))]))
		fmt.Fprintf(w, "  %s | %s\n", number, p.Source)
		fmt.Fprintf(w, "  %s | %s^\n", margin, indent)
	}
	if p.Hint != "" {
		fmt.Fprintf(w, "  %s = %s\n", margin, p.Hint)
	}
}

func (p *Problem) whole() string {
	if p.Hint == "" {
		return p.Message
	}
	return p.Message + "; " + p.Hint
}

var (
	githubText     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	githubProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// GitHub writes workflow commands, which GitHub Actions shows as annotations on the lines.
func (f *Findings) GitHub(w io.Writer) {
	for i := range f.Problems {
		p := &f.Problems[i]
		fmt.Fprintf(w, "::%s file=%s,line=%d,col=%d,title=%s::%s\n", p.Severity, githubProperty.Replace(p.File), p.Line,
			p.Column,
			githubProperty.Replace("weir check: "+p.Code), githubText.Replace(p.whole()))
	}
}
