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

	"github.com/weir-ratelimit/weir/internal/test/casetest"
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
			meaning := cmp.Or(meanings[code], "never")
			if meaning == "the command line is wrong" {
				meaning = "" // as the table of all commands says
			}
			fmt.Fprintf(&b, " %s |", escapedCell(meaning))
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
	if *casetest.Update {
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
	var server *kong.Node
	for _, command := range leaves(app) {
		fmt.Fprintf(&b, "\n## `%s`\n\n```sh\n%s\n```\n\n%s\n", command.FullPath(), "weir "+command.Summary(), command.Help)
		writeTable(&b, command, "", command.Positional)
		for _, group := range groupsOf(command) {
			if group == "server" {
				server = command
				b.WriteString("\nPlus the [flags for a running process](#flags-for-a-running-process).\n")
				continue
			}
			if group != "" {
				writeTable(&b, command, group, nil)
			}
		}
	}
	b.WriteString("\n## Flags for a running process\n")
	writeTable(&b, server, "server", nil)
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

// isShown omits --help, and --format if it has the help that the head of the page explains for all commands.
func isShown(f *kong.Flag) bool {
	return !f.Hidden && f.Name != "help" && f.Help != "text for people, or json."
}

// writeTable writes a table with a command's arguments and its flags of one group.
func writeTable(b *strings.Builder, command *kong.Node, group string, arguments []*kong.Positional) {
	flags := slices.DeleteFunc(slices.Clone(command.Flags), func(f *kong.Flag) bool {
		return !isShown(f) || groupOf(f) != group
	})
	if len(flags)+len(arguments) == 0 {
		return
	}
	for _, g := range flagGroups {
		if g.Key == group && command.Name == "serve" {
			fmt.Fprintf(b, "\n### %s\n", strings.TrimSuffix(g.Title, ":"))
		}
	}
	b.WriteString("\n| flag | meaning |\n|---|---|\n")
	for _, p := range arguments {
		fmt.Fprintf(b, "| `%s` | %s |\n", strings.ReplaceAll(p.Summary(), "|", `\|`), escapedCell(p.Help))
	}
	for _, f := range flags {
		name := "--" + f.Name
		if f.Tag.Negatable != "" {
			name = "--[no-]" + f.Name
		}
		if f.Short != 0 {
			name = "-" + string(f.Short) + ", " + name
		}
		if f.HasDefault && f.Default != "" && !f.IsBool() {
			name += "=" + f.Default
		}
		required := ""
		if f.Required {
			required = "Required. "
		}
		fmt.Fprintf(b, "| `%s` | %s%s%s |\n", name, required, escapedCell(f.Help), unusualVariable(f))
	}
}

// unusualVariable names a flag's variable if it is not WEIR_ and the flag's name.
func unusualVariable(f *kong.Flag) string {
	usual := "WEIR_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
	if len(f.Envs) == 0 || f.Envs[0] == usual {
		return ""
	}
	return " Variable: `" + f.Envs[0] + "`."
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
