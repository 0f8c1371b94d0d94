package cli

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	gocmp "github.com/google/go-cmp/cmp"
)

// Both pages have text by hand above this line, and below it what the command line itself says.
const generatedMark = "<!-- Below this line `make docs` writes: edit the help texts in internal/cli instead. -->\n"

// TestCommandLinePage compares docs/reference/cli.md with the commands and flags.
func TestCommandLinePage(t *testing.T) {
	checkGenerated(t, "../../docs/reference/cli.md", commandLinePage(parsedModel(t)))
}

// TestExitCodesPage compares docs/reference/exit-codes.md with the exit codes that the help texts state.
// TestExitCodes checks that these are true.
func TestExitCodesPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n| command | 0 | 1 | 2 |\n|---|---|---|---|\n")
	for _, command := range leaves(parsedModel(t)) {
		meanings := statedCodes(command)
		fmt.Fprintf(&b, "| [`%s`](cli.md#%s) |", command.FullPath(), anchor(command.FullPath()))
		for code := range 3 {
			fmt.Fprintf(&b, " %s |", escapedCell(cmp.Or(meanings[code], "never")))
		}
		b.WriteString("\n")
	}
	checkGenerated(t, "../../docs/reference/exit-codes.md", b.String())
}

func parsedModel(t *testing.T) *kong.Node {
	t.Helper()
	parser, err := newParser(&cli{}, streams{out: t.Output(), err: t.Output()}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	return parser.Model.Node
}

// checkGenerated compares what is below the mark of a page, or writes it with -update.
func checkGenerated(t *testing.T, page, want string) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, got, ok := strings.Cut(string(data), generatedMark)
	if !ok {
		t.Fatalf("%s has no line %q", page, generatedMark)
	}
	if *update {
		if err := os.WriteFile(page, []byte(before+generatedMark+want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("%s: -want +got (make docs writes it)\n%s", page, diff)
	}
}

// leaves are the commands that can be run, in the order of the help.
func leaves(node *kong.Node) (all []*kong.Node) {
	for _, child := range node.Children {
		if child.Hidden {
			continue
		}
		if len(child.Children) == 0 {
			all = append(all, child)
		}
		all = append(all, leaves(child)...)
	}
	return all
}

var (
	codesParagraph = regexp.MustCompile(`(?s)Exit codes: (.*?)\.(\n\n|$)`)
	codeStart      = regexp.MustCompile(`(^|[,;] )([012]) `)
)

// statedCodes are the exit codes that a command's help states, each with its meaning.
func statedCodes(command *kong.Node) map[int]string {
	paragraph := codesParagraph.FindStringSubmatch(command.Detail)
	if paragraph == nil {
		return nil
	}
	text := strings.Join(strings.Fields(paragraph[1]), " ")
	starts := codeStart.FindAllStringSubmatchIndex(text, -1)
	meanings := map[int]string{}
	for i, s := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		meanings[int(text[s[4]]-'0')] = text[s[1]:end]
	}
	return meanings
}

func commandLinePage(app *kong.Node) string {
	var b strings.Builder
	b.WriteString("\n## Commands\n\n| command | what it does |\n|---|---|\n")
	for _, command := range leaves(app) {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", command.FullPath(), anchor(command.FullPath()), escapedCell(command.Help))
	}
	var server *kong.Node
	for _, command := range leaves(app) {
		fmt.Fprintf(&b, "\n## `%s`\n\n```sh\n%s\n```\n\n%s\n", command.FullPath(), "weir "+command.Summary(), command.Help)
		writeArguments(&b, command)
		for _, group := range groupsOf(command) {
			if group == "server" {
				server = command
				b.WriteString("\nPlus the [flags for a running process](#flags-for-a-running-process).\n")
				continue
			}
			writeFlags(&b, command, group)
		}
	}
	b.WriteString("\n## Flags for a running process\n")
	writeFlags(&b, server, "server")
	return b.String()
}

// groupsOf are the keys of the groups that a command's flags are in, as its help has them; "" is first.
func groupsOf(command *kong.Node) []string {
	found := map[string]bool{}
	for _, f := range command.Flags {
		if isShown(f) {
			found[groupOf(f)] = true
		}
	}
	keys := []string{""}
	for _, g := range flagGroups {
		keys = append(keys, g.Key)
	}
	return slices.DeleteFunc(keys, func(key string) bool { return !found[key] })
}

func groupOf(f *kong.Flag) string {
	if f.Group == nil {
		return ""
	}
	return f.Group.Key
}

func isShown(f *kong.Flag) bool { return !f.Hidden && f.Name != "help" }

func writeArguments(b *strings.Builder, command *kong.Node) {
	if len(command.Positional) == 0 {
		return
	}
	b.WriteString("\n| argument | meaning |\n|---|---|\n")
	for _, p := range command.Positional {
		fmt.Fprintf(b, "| `%s` | %s |\n", strings.ReplaceAll(p.Summary(), "|", `\|`), escapedCell(p.Help))
	}
}

func writeFlags(b *strings.Builder, command *kong.Node, group string) {
	for _, g := range flagGroups {
		if g.Key == group && command.Name == "serve" {
			fmt.Fprintf(b, "\n### %s\n", strings.TrimSuffix(g.Title, ":"))
		}
	}
	hasVariable := slices.ContainsFunc(command.Flags, func(f *kong.Flag) bool {
		return isShown(f) && groupOf(f) == group && len(f.Envs) > 0
	})
	if hasVariable {
		b.WriteString("\n| flag | variable | default | meaning |\n|---|---|---|---|\n")
	} else {
		b.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
	}
	for _, f := range command.Flags {
		if !isShown(f) || groupOf(f) != group {
			continue
		}
		name := "--" + f.Name
		if f.Tag.Negatable != "" {
			name = "--[no-]" + f.Name
		}
		if f.Short != 0 {
			name = "-" + string(f.Short) + ", " + name
		}
		fmt.Fprintf(b, "| `%s` |", name)
		if hasVariable && len(f.Envs) > 0 {
			fmt.Fprintf(b, " `%s`", f.Envs[0])
		}
		if hasVariable {
			b.WriteString(" |")
		}
		fmt.Fprintf(b, " %s | %s |\n", defaultOf(f), escapedCell(f.Help))
	}
}

func defaultOf(f *kong.Flag) string {
	switch {
	case f.Required:
		return "required"
	case f.HasDefault && f.Default != "":
		return "`" + f.Default + "`"
	}
	return ""
}

// anchor is the id that a heading has on GitHub and on the site.
func anchor(heading string) string { return strings.ReplaceAll(heading, " ", "-") }

// escapedCell is a text for a table. What Markdown would take for a tag, an emphasis or the end of the cell is escaped.
func escapedCell(text string) string { return strings.ReplaceAll(escapedText(text), "|", `\|`) }

// escapedText is a text in Markdown, with flags as code.
func escapedText(text string) string {
	text = strings.NewReplacer("<", "&lt;", "*", `\*`, "[", `\[`).Replace(text)
	return flagInText.ReplaceAllString(text, "$1`$2`")
}

var flagInText = regexp.MustCompile(`(^|[ (])(--[a-z][a-z-]*[a-z])`)
