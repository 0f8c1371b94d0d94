package rulefile

import (
	"bytes"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// maxSyntaxSearch is the maximum size of a file, in bytes, that is parsed again to find the line of an error.
const maxSyntaxSearch = 1 << 20

const quoteStar = "a value that starts with * must be quoted, as in value: '*.html'"

// syntaxHints say what to write instead, for parts of the parser's messages.
var syntaxHints = []struct{ part, hint string }{
	{"unknown anchor", quoteStar},
	{"did not find expected alphabetic or numeric character", quoteStar},
	{"incompatible YAML document", "remove the line that begins with %YAML"},
	{"did not find expected '-' indicator", "indent each field of an item as far as its first one, which follows the -"},
	{"tab character", "indent with spaces, not tabs"},
	{"cannot start any token", "indent with spaces, not tabs, and quote a value that starts with @, ` or %"},
	{"mapping values are not allowed", "check the indentation, and quote a value that contains a colon and a space"},
}

func (r *reader) reportSyntax(err error) {
	ends := lineEnds(r.file.Data)
	line, msg := r.syntaxError(ends, err)
	text := strings.ReplaceAll(string(r.file.Data[:ends[line-1]]), "\r\n", "\n")
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	last := lines[len(lines)-1]
	at := descriptors.Position{File: r.file.Name, Line: line, Column: 1 + len(last) - len(strings.TrimLeft(last, " "))}
	if up, column, what := findSlip(lines); what != "" {
		at.Line, at.Column = line-up, column
		r.Errorf(at, "this is not valid YAML: %s", what)
		return
	}
	for _, h := range syntaxHints {
		if strings.Contains(msg, h.part) {
			r.Errorf(at, "this is not valid YAML: %s; %s", msg, h.hint)
			return
		}
	}
	r.Errorf(at, "this is not valid YAML: %s; check the indentation, quotes and brackets here and in the lines above", msg)
}

// slips are common mistakes, which the parser often notices only in the next line. The first group is their position.
var slips = []struct {
	pattern *regexp.Regexp
	what    string
}{
	{regexp.MustCompile(`^ *(?:- +(?:key|name)|[A-Za-z_]+)(:)(?:[^ \t\pZ:/]|/[^/])`), "there is no space after the colon; write name: value"},
	{regexp.MustCompile(`^ *(-)[A-Za-z_]+:( |$)`), "there is no space after the -; write - name: value"},
	{regexp.MustCompile(`^ *([\x{2010}-\x{2015}])`), "this dash is not the character -; type it again"},
	{regexp.MustCompile(`^[^#"':]*([\x{ff1a}])`), "this colon is a full-width one; write : and a space"},
	{regexp.MustCompile(`^[^#"']*?([^ \PZ])`), "this space is not an ordinary space; type it again"},
	{regexp.MustCompile(`([\x00-\x08\x0b\x0c\x0e-\x1f\x7f])`), "here is a control character; remove it"},
}

// findSlip searches the last line, and the last line with text above it, for a slip. The slip is up lines above the
// last line; what is empty if there is no slip.
func findSlip(lines []string) (up, column int, what string) {
	for ; up < len(lines); up++ {
		line := lines[len(lines)-1-up]
		for _, s := range slips {
			if at := s.pattern.FindStringSubmatchIndex(line); at != nil {
				return up, 1 + utf8.RuneCountInString(line[:at[2]]), s.what
			}
		}
		if up > 0 && strings.TrimSpace(line) != "" {
			break
		}
	}
	return 0, 0, ""
}

// notUTF8 finds the first byte that is invalid UTF-8, unless a byte order mark says that the file is UTF-16.
func (r *reader) notUTF8() (at descriptors.Position, char byte, found bool) {
	data := r.file.Data
	if utf8.Valid(data) || bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return descriptors.Position{}, 0, false
	}
	i := 0
	for {
		char, size := utf8.DecodeRune(data[i:])
		if char == utf8.RuneError && size == 1 {
			return positionOf(r.file.Name, data, i), data[i], true
		}
		i += size
	}
}

// positionOf returns the position of byte i of a file.
func positionOf(file string, data []byte, i int) descriptors.Position {
	line := 1 + bytes.LastIndexByte(data[:i], '\n')
	return descriptors.Position{
		File: file, Line: 1 + bytes.Count(data[:i], []byte("\n")), Column: 1 + utf8.RuneCount(data[line:i]),
	}
}

// syntaxError returns the parser's message, and the line of the error. The parser often names the first line of the
// whole list or mapping. So line is the end of the shortest start of the file that fails with the same message.
func (r *reader) syntaxError(ends []int, err error) (line int, msg string) {
	named, msg := splitLine(err)
	if len(r.file.Data) > maxSyntaxSearch {
		return min(max(named, 1), len(ends)), msg
	}
	return min(len(ends), 1+sort.Search(len(ends), func(i int) bool {
		_, err := r.parse(r.file.Data[:ends[i]])
		if err == nil {
			return false
		}
		_, same := splitLine(err)
		return same == msg
	})), msg
}

// splitLine splits the parser's "yaml: line 3: message".
func splitLine(err error) (line int, msg string) {
	msg = strings.TrimPrefix(err.Error(), "yaml: ")
	rest, found := strings.CutPrefix(msg, "line ")
	number, problem, ok := strings.Cut(rest, ": ")
	if n, err := strconv.Atoi(number); found && ok && err == nil {
		return n, problem
	}
	return 0, msg
}

// lineEnds returns the offsets of the ends of all lines; there is at least one line.
func lineEnds(data []byte) []int {
	ends, end := []int{}, 0
	for line := range bytes.Lines(data) {
		end += len(line)
		ends = append(ends, end)
	}
	if end == 0 {
		return []int{0}
	}
	return ends
}
