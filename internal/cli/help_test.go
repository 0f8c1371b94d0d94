package cli

import (
	"regexp"
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

// weir serve --help shows the 15 flags that people set; weir help TOPIC has the others, and weir --help itself.
func TestServeHelpShows15Flags(t *testing.T) {
	var out strings.Builder
	if code := run(t.Context(), []string{"serve", "--help"}, &out, t.Output()); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	if shown := regexp.MustCompile(`(?m)^ +(-\w, )?--[a-z-]+`).FindAllString(out.String(), -1); len(shown) != 15 {
		t.Errorf("it shows %d flags, want 15: %q", len(shown), shown)
	}
}
