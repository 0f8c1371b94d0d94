package cli

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// helpCmd is `weir help`. run makes --help of it, behind the command that is named.
type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command."`
}

// Help is shown below the one line of it.
func (*helpCmd) Help() string {
	return `The same as COMMAND --help.

Exit codes: 0 shown, 2 there is no such command.

Examples:

    weir help
    weir help serve
    weir help boost list`
}

// checkCommand finds a misspelled command below one that may be left out, which would be taken for that one's argument:
// weir boost lst.
func checkCommand(app *kong.Node, args []string) error {
	node := app
	for _, word := range args {
		child := childOf(node, word)
		switch {
		case child != nil:
			node = child
			continue
		case node.DefaultCmd == nil || strings.HasPrefix(word, "-") || strings.Contains(word, "="):
			return nil
		}
		var names []string
		for _, child := range node.Children {
			names = append(names, child.Name)
		}
		hint := "it has " + strings.Join(names, ", ")
		if near := descriptors.Nearest(word, names); near != "" {
			hint = fmt.Sprintf("did you mean %s?", near)
		}
		return &usageError{err: fmt.Errorf("%s has no command %s, and %[2]s is no descriptor, key=value; %s", node.FullPath(),
			word, hint), command: node.FullPath()}
	}
	return nil
}

// childOf is the node's command of that name, nil if there is none.
func childOf(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name {
			return child
		}
	}
	return nil
}
