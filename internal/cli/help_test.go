package cli

import (
	"strings"
	"testing"
)

// Every command says in its help how it is used, by an example.
func TestEveryCommandHasAnExample(t *testing.T) {
	parser, err := newParser(&cli{}, streams{out: t.Output(), err: t.Output()}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range parser.Model.Children {
		_, examples, found := strings.Cut(command.Detail, "Example")
		if !found || !strings.Contains(examples, "weir "+command.Name) {
			t.Errorf("weir %s --help has no example of it", command.Name)
		}
		if !strings.HasSuffix(command.Help, ".") {
			t.Errorf("weir %s has the help %q, want a sentence", command.Name, command.Help)
		}
	}
}
