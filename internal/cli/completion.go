package cli

import (
	_ "embed"
	"fmt"
	"slices"
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
// its answer is a word and, behind a tab, what it means; the line completeFiles stands for the names of files.
const (
	completeCommand = "__complete"
	completeFiles   = ":files"
)

// completions are the lines that complete the last word.
func completions(app *kong.Node, words []string) []string {
	c := completer{node: app}
	if len(words) == 0 {
		words = []string{""}
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
		named := func(child *kong.Node) bool { return child.Name == word }
		if i := slices.IndexFunc(c.node.Children, named); i >= 0 {
			c.node = c.node.Children[i]
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

// complete returns the lines that begin with the word.
func (c *completer) complete(word string) (lines []string) {
	name, _, given := strings.Cut(word, "=")
	switch {
	case c.flag != nil:
		word = strings.TrimPrefix(word, "=")
		lines = values(c.flag.Value, "")
	case given && strings.HasPrefix(name, "--") && !c.verbatim:
		if f := c.find(name); f != nil {
			lines = values(f.Value, name+"=")
		}
	case strings.HasPrefix(word, "-") && !c.verbatim:
		lines = c.flags()
	case len(c.node.Children) > 0:
		for _, child := range c.node.Children {
			if !child.Hidden {
				lines = append(lines, child.Name+"\t"+child.Help)
			}
		}
	case len(c.node.Positional) > 0:
		i := min(c.positionals, len(c.node.Positional)-1)
		if p := c.node.Positional[i]; i == c.positionals || p.IsCumulative() {
			lines = values(p, "")
		}
	}
	return slices.DeleteFunc(lines, func(line string) bool {
		return line != completeFiles && !strings.HasPrefix(line, word)
	})
}

func (c *completer) flags() (lines []string) {
	for _, flags := range c.node.AllFlags(true) {
		for _, f := range flags {
			if f.Name == "version" && c.node.Parent != nil {
				continue
			}
			lines = append(lines, "--"+f.Name+"\t"+f.Help)
			if f.Tag.Negatable != "" {
				lines = append(lines, "--no-"+f.Name+"\t"+f.Help)
			}
		}
	}
	return lines
}

// values are those of a flag or an argument.
func values(v *kong.Value, prefix string) (lines []string) {
	if v.Enum != "" {
		for _, value := range v.EnumSlice() {
			lines = append(lines, prefix+value+"\t")
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
			return []string{completeFiles}
		case part == strings.ToLower(part) && strings.Contains(placeholder, "|"):
			lines = append(lines, prefix+part+"\t")
		}
	}
	return lines
}
