package cli

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

//go:embed completion/weir.bash
var bashCompletion string

//go:embed completion/weir.zsh
var zshCompletion string

//go:embed completion/weir.fish
var fishCompletion string

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish."`
}

func (*completionCmd) Help() string {
	return `Prints what makes the shell complete commands, flags and their values. Put the line for your shell into its
startup file.

Exit codes: 0 printed, 2 the command line is wrong.

Examples:

    source <(weir completion bash)   # in ~/.bashrc
    source <(weir completion zsh)    # in ~/.zshrc, below compinit
    weir completion fish | source    # in ~/.config/fish/config.fish`
}

func (c *completionCmd) Run(io streams) error {
	script := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Shell]
	_, err := fmt.Fprint(io.out, script)
	return err
}

// completeCommand is what the scripts call, with the words behind weir up to and with the one to complete. A line of
// its answer is a word and, behind a tab, what it means; the line :files stands for the names of files.
const completeCommand = "__complete"

// completions are the lines that complete the last word.
func completions(app *kong.Node, words []string) []string {
	c := completer{node: app}
	if len(words) == 0 {
		words = []string{""}
	}
	if len(words) > 1 && words[0] == "help" && !strings.HasPrefix(words[len(words)-1], "-") {
		words = words[1:]
	}
	last := len(words) - 1
	for _, word := range words[:last] {
		c.pass(word)
	}
	return c.complete(words[last])
}

// completer follows the words of a command line.
type completer struct {
	node        *kong.Node
	flag        *kong.Flag // whose value comes next
	positionals int        // that have come
	verbatim    bool       // -- has come: there are no more flags
}

// pass follows a word that is complete.
func (c *completer) pass(word string) {
	switch {
	case word == "=" && c.flag != nil: // as bash splits --flag=value
	case c.flag != nil:
		c.flag = nil
	case word == "--" && !c.verbatim:
		c.verbatim = true
	case strings.HasPrefix(word, "-") && !c.verbatim:
		if name, _, given := strings.Cut(word, "="); !given {
			c.flag = c.find(name)
		}
	default:
		if child := childOf(c.node, word); child != nil {
			c.node = child
			return
		}
		c.positionals++
	}
}

// find is the flag of that name if it takes a value, else nil.
func (c *completer) find(name string) *kong.Flag {
	for _, flags := range c.node.AllFlags(false) {
		for _, f := range flags {
			if "--"+f.Name == name && !f.IsBool() {
				return f
			}
		}
	}
	return nil
}

func (c *completer) complete(word string) []string {
	name, value, given := strings.Cut(word, "=")
	switch {
	case c.flag != nil:
		return values(c.flag.Value, "", strings.TrimPrefix(word, "="))
	case given && strings.HasPrefix(name, "--") && !c.verbatim:
		if f := c.find(name); f != nil {
			return values(f.Value, name+"=", value)
		}
		return nil
	case strings.HasPrefix(word, "-") && !c.verbatim:
		return c.flags(word)
	case len(c.node.Children) > 0:
		return c.commands(word)
	case len(c.node.Positional) > 0:
		i := min(c.positionals, len(c.node.Positional)-1)
		if p := c.node.Positional[i]; i == c.positionals || p.IsCumulative() {
			return values(p, "", word)
		}
	}
	return nil
}

func (c *completer) commands(begin string) (lines []string) {
	for _, child := range c.node.Children {
		if strings.HasPrefix(child.Name, begin) && !child.Hidden {
			lines = append(lines, child.Name+"\t"+child.Help)
		}
	}
	return lines
}

func (c *completer) flags(begin string) (lines []string) {
	for _, flags := range c.node.AllFlags(true) {
		for _, f := range flags {
			if f.Name == "version" && c.node.Parent != nil {
				continue
			}
			names := []string{"--" + f.Name}
			if f.Tag.Negatable != "" {
				names = append(names, "--no-"+f.Name)
			}
			for _, name := range names {
				if strings.HasPrefix(name, begin) {
					lines = append(lines, name+"\t"+f.Help)
				}
			}
		}
	}
	return lines
}

// values are those of a flag or an argument that begin so.
func values(v *kong.Value, prefix, begin string) (lines []string) {
	if v.Enum != "" {
		for _, value := range v.EnumSlice() {
			if strings.HasPrefix(value, begin) {
				lines = append(lines, prefix+value+"\t")
			}
		}
		return lines
	}
	placeholder := v.Name
	if v.Flag != nil {
		placeholder = v.Flag.PlaceHolder
	}
	for part := range strings.SplitSeq(placeholder, "|") {
		switch {
		case strings.TrimSuffix(strings.ToUpper(part), "S") == "PATH", part == "FILE":
			return []string{":files"}
		case part == strings.ToLower(part) && strings.HasPrefix(part, begin) && strings.Contains(placeholder, "|"):
			lines = append(lines, prefix+part+"\t")
		}
	}
	return lines
}
