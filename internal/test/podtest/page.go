package podtest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// kind is the meaning of a block of a page.
type kind int

const (
	shown kind = iota // has no effect
	commands
	terminal
	output
	file
	patch
)

// block is a fenced block of a page.
type block struct {
	kind  kind
	line  int    // line of the page where the block's text begins
	title string // for a terminal, its name; for a file, its path
	key   string // for a patch: the key that it replaces
	below string // for a patch: the listener with the key; if empty, the first key of the file
	text  string
	exit  int // for commands: the exit code of the last command
}

var (
	opening   = regexp.MustCompile("^( *)```([a-z]*)(?: +title=\"([^\"]*)\")?$")
	notRun    = regexp.MustCompile(`^ *<!-- not run: .+ -->$`)
	exitCode  = regexp.MustCompile(`^ *<!-- exit code ([0-9]+) -->$`)
	patchName = regexp.MustCompile(`^(\S+): (\S+)(?: of (\S+))?$`)
)

// parse returns the blocks of a page. It returns an error for an unknown kind of fence.
func parse(text string) ([]block, error) {
	var blocks []block
	lines := strings.Split(text, "\n")
	comment := ""
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if !strings.HasPrefix(strings.TrimSpace(line), "```") {
			if strings.TrimSpace(line) != "" {
				comment = line
			}
			continue
		}
		m := opening.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("line %d: %s: want ```, a language and perhaps title=\"...\"", i+1, line)
		}
		b := block{line: i + 2, title: m[3]}
		var body strings.Builder
		for i++; i < len(lines) && strings.TrimSpace(lines[i]) != "```"; i++ {
			body.WriteString(strings.TrimPrefix(lines[i], m[1]) + "\n")
		}
		if i == len(lines) {
			return nil, fmt.Errorf("line %d: the block has no end", b.line-1)
		}
		b.text = body.String()
		b.classify(m[2], comment, blocks)
		blocks = append(blocks, b)
		comment = ""
	}
	return blocks, nil
}

// classify sets the block's meaning from its language, the line before it and the blocks before it.
func (b *block) classify(language, comment string, before []block) {
	name := patchName.FindStringSubmatch(b.title)
	switch {
	case notRun.MatchString(comment):
		b.kind = shown
	case language == "sh" && b.title == "":
		b.kind = commands
		if m := exitCode.FindStringSubmatch(comment); m != nil {
			b.exit, _ = strconv.Atoi(m[1]) // the pattern matches only digits
		}
	case language == "sh":
		b.kind = terminal
	case language == "text" && b.title == "" && len(before) > 0 && before[len(before)-1].runs():
		b.kind = output
	case name != nil:
		b.kind, b.title, b.key, b.below = patch, name[1], name[2], name[3]
	case b.title != "":
		b.kind = file
	default:
		b.kind = shown
	}
}

// runs reports whether the block has commands.
func (b *block) runs() bool { return b.kind == commands || b.kind == terminal }

// replaceKey replaces the first line `key:` of a YAML text, and the more deeply indented lines after it, by text with
// the key's indentation. If below is not "", it searches after the line `name: below`, of several such lines the first
// with the least indentation: the listener, not a virtual host in it.
func replaceKey(yaml, key, below, text string) (string, error) {
	lines := strings.Split(yaml, "\n")
	start, least := 0, len(yaml)
	for i, line := range lines {
		if below != "" && strings.TrimSpace(line) == "- name: "+below && indentation(line) < least {
			start, least = i, indentation(line)
		}
	}
	if below != "" && start == 0 && least == len(yaml) {
		return "", fmt.Errorf("no name %s", below)
	}
	for i := start; i < len(lines); i++ {
		line := lines[i]
		trimmed := strings.TrimLeft(line, " ")
		if !strings.HasPrefix(trimmed, key+":") {
			continue
		}
		indent := len(line) - len(trimmed)
		end := i + 1
		for j := end; j < len(lines); j++ {
			if strings.TrimSpace(lines[j]) == "" {
				continue
			}
			if indentation(lines[j]) <= indent {
				break
			}
			end = j + 1
		}
		var out []string
		out = append(out, lines[:i]...)
		for l := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
			if l != "" {
				l = strings.Repeat(" ", indent) + l
			}
			out = append(out, l)
		}
		return strings.Join(append(out, lines[end:]...), "\n"), nil
	}
	return "", fmt.Errorf("no key %s", key)
}

// indentation returns the number of spaces at the beginning of a line.
func indentation(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// matchLines reports whether the output matches a page's, line by line except for spaces at the ends.
func matchLines(want, got string) bool {
	var pattern strings.Builder
	pattern.WriteString(`^`)
	for line := range strings.SplitSeq(strings.TrimRight(want, "\n "), "\n") {
		if strings.TrimSpace(line) == "..." {
			pattern.WriteString(`(?:[^\n]*\n)*?`)
			continue
		}
		pattern.WriteString(linePattern(line) + `\n`)
	}
	pattern.WriteString(`$`)
	return regexp.MustCompile(pattern.String()).MatchString(tidy(got))
}

// containsLines reports whether the output has all lines of a page, in this order.
func containsLines(want, got string) bool {
	rest := tidy(got)
	for line := range strings.SplitSeq(strings.TrimRight(want, "\n "), "\n") {
		if strings.TrimSpace(line) == "..." {
			continue
		}
		at := regexp.MustCompile(`(?m)^` + linePattern(line) + `$`).FindStringIndex(rest)
		if at == nil {
			return false
		}
		rest = rest[at[1]:]
	}
	return true
}

// linePattern returns the regular expression for one line of a page.
func linePattern(line string) string {
	parts := strings.Split(strings.TrimRight(line, " "), "...")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(part)
	}
	return strings.Join(parts, `[^\n]*`)
}

// tidy removes carriage returns, spaces at the ends of lines and empty lines at the end.
func tidy(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " \t\r")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
}
