package casetest

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Update is the flag -update of all tests with golden files.
var Update = flag.Bool("update", false, "write golden files: read what changes")

// Scenario is a file of commands, each with its answer. The README.md beside it lists the commands.
type Scenario struct{ Path, Text, played string }

// Command is a line of a scenario. Text has the lines below that begin with two spaces: the command's input or answer.
type Command struct {
	*testing.T

	At   string // file:line
	Name string
	Args []string
	Text string
}

// Scenarios calls play for each of the package's testdata/scenarios/*.txt, in a test of its own.
func Scenarios(t *testing.T, play func(t *testing.T, s *Scenario)) {
	t.Helper()
	const pattern = "testdata/scenarios/*.txt"
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no file matches %s: %v", pattern, err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		s := &Scenario{Path: path, Text: string(text)}
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) { play(t, s) })
		if *Update && s.played != "" && err == nil {
			err = os.WriteFile(path, []byte(s.played), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Play calls do for the commands in order, and compares each answer with the answer in the file. Empty lines and lines
// that begin with # are no commands. commands lists the names, each with the arguments that it must have, such as
// "wait TIME", and with " ..." if it may have more; those after start need a start before them.
func (s *Scenario) Play(t *testing.T, do func(c Command) (answer string), commands ...string) {
	t.Helper()
	var out strings.Builder
	isStarted := false
	lines := strings.Split(strings.TrimSuffix(s.Text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line, c := lines[i], Command{T: t, At: fmt.Sprintf("%s:%d", s.Path, i+1)}
		out.WriteString(line + "\n")
		for ; i+1 < len(lines) && strings.HasPrefix(lines[i+1], "  "); i++ {
			c.Text += lines[i+1][2:] + "\n"
		}
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			c.Name, c.Args = words[0], words[1:]
			c.check(commands, isStarted)
			isStarted = isStarted || c.Name == "start"
			got := do(c)
			for answer := range strings.Lines(got) {
				out.WriteString("  " + answer)
			}
			if got != c.Text && !*Update {
				t.Errorf("%s: %s\ngot:\n%swant:\n%s", c.At, line, got, c.Text)
			}
		} else if c.Text != "" {
			c.Fatalf("an answer to no command:\n%s", c.Text)
		}
	}
	s.played = out.String()
}

// Fatalf names the command's line.
func (c Command) Fatalf(format string, args ...any) {
	c.Helper()
	c.T.Fatalf("%s: %s", c.At, fmt.Sprintf(format, args...))
}

// check fails the test if the command is not in commands, has too few or many arguments, or needs a start before it.
func (c Command) check(commands []string, isStarted bool) {
	c.Helper()
	named := func(name string) func(string) bool {
		return func(command string) bool { return strings.Fields(command)[0] == name }
	}
	i, start := slices.IndexFunc(commands, named(c.Name)), slices.IndexFunc(commands, named("start"))
	if i < 0 {
		c.Fatalf("%q is no command; the commands are %s", c.Name, strings.Join(commands, ", "))
	}
	words, mayHaveMore := strings.CutSuffix(commands[i], "...")
	switch required := len(strings.Fields(words)) - 1; {
	case len(c.Args) < required:
		c.Fatalf("%s has too few arguments, want %s", c.Name, commands[i])
	case len(c.Args) > required && !mayHaveMore:
		c.Fatalf("%s has too many arguments, want %s", c.Name, commands[i])
	case i > start && start >= 0 && !isStarted:
		c.Fatalf("%s needs a start before it", c.Name)
	}
}

// UnknownOption fails the test because a word is no option of the command.
func (c Command) UnknownOption(word string) {
	c.Helper()
	c.Fatalf("%q is no option; README.md beside the file lists them", word)
}

// Parsed parses a word of the command. An error fails the test.
func Parsed[T any](c Command, parse func(string) (T, error), word string) T {
	c.Helper()
	v, err := parse(word)
	if err != nil {
		c.Fatalf("%q: %v", word, err)
	}
	return v
}

// Chosen returns the value of a word in all. Any other word fails the test.
func Chosen[T any](c Command, all map[string]T, word string) T {
	c.Helper()
	v, ok := all[word]
	if !ok {
		c.Fatalf("%q is none of %q", word, slices.Sorted(maps.Keys(all)))
	}
	return v
}
