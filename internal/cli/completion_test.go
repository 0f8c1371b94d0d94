package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// lineUp are the first words of lines, in one line.
func lineUp(lines []string) string {
	words := make([]string, len(lines))
	for i, line := range lines {
		words[i], _, _ = strings.Cut(line, "\t")
	}
	return strings.Join(words, " ")
}

func TestCompletions(t *testing.T) {
	parser, err := newParser(&cli{}, streams{out: t.Output(), err: t.Output()}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		words []string
		want  string
	}{
		{[]string{"chec"}, "check"},
		{[]string{"nothing"}, ""},
		{[]string{"check", "--fo"}, "--format"},
		{[]string{"check", "--format", ""}, "text json github"},
		{[]string{"check", "--format", "=", "j"}, "json"}, // bash
		{[]string{"check", "--format", "="}, "text json github"},
		{[]string{"check", "--format=g"}, "--format=github"},
		{[]string{"check", "--format", "json", ""}, ":files"},
		{[]string{"check", "--strict", "--fo"}, "--format"}, // a flag without a value
		{[]string{"check", "--", "--fo"}, ":files"},
		{[]string{"check", "--nothing=a"}, ""},
		{[]string{"explain", "--rules", ""}, ":files"},
		{[]string{"explain", "--rules=x"}, ":files"},
		{[]string{"explain", "a="}, ""},
		{[]string{"serve", "--no-cac"}, "--no-cached-denials"},
		{[]string{"publish", ""}, ":files"},
		{[]string{"publish", "rules", ""}, ""},
		{[]string{"completion", "f"}, "fish"},
		{[]string{"version", "-"}, "--help --format"},
		{[]string{"--v"}, "--version"},
		{[]string{"get", "--format", ""}, "text json"},
		{[]string{"simulate", "--rul"}, "--rules"},
		{[]string{"explain", "--expect", "o"}, "ok over"},
		{[]string{"he"}, "health"},
	} {
		if got := lineUp(completions(parser.Model.Node, tt.words)); got != tt.want {
			t.Errorf("weir %s<TAB> gives %q, want %q", strings.Join(tt.words, " "), got, tt.want)
		}
	}
	if got := lineUp(completions(parser.Model.Node, nil)); !strings.HasPrefix(got, "serve init check explain ") {
		t.Errorf("weir <TAB> gives %q", got)
	}
}

// The scripts work in the shells themselves. Bash has to be there; the others are not on every machine, and are tried
// where they are.
func TestCompletionInShells(t *testing.T) {
	exe, err := os.Executable() // which is weir if it is called so: see TestMain
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(exe, filepath.Join(dir, "weir")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rules", "rules.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ shell, script, want string }{
		// As bash calls it, which splits at =.
		{
			"bash", `COMP_WORDS=(weir check --format = js) COMP_CWORD=4; _weir; echo "${COMPREPLY[@]}"
			COMP_WORDS=(weir exp) COMP_CWORD=1; _weir; echo "${COMPREPLY[@]}"
			COMP_WORDS=(weir serve --log-format '') COMP_CWORD=3; _weir; echo "${COMPREPLY[@]}"
			compopt() { echo "$@"; }
			COMP_WORDS=(weir check ru) COMP_CWORD=2; _weir; echo "${#COMPREPLY[@]}"; complete -p weir`,
			"json\nexplain\ntext json\n-o default\n0\ncomplete -F _weir weir\n",
		},
		{
			"zsh", `_describe() { print -l -- ${(P)2} }; _files() { print files $PREFIX }; compset() { }
			words=(weir check --format=js) CURRENT=3; _weir
			words=(weir exp) CURRENT=2; _weir
			words=(weir check ru) CURRENT=3; _weir; print $_comps[weir]`,
			"--format=json:\nexplain:Show which rules a request matches, and why others do not.\nfiles\n_weir\n",
		},
		{
			"fish", `complete -C 'weir check --format=js'
			complete -C 'weir exp'
			complete -C 'weir check ru'
			complete -C 'weir explain --rules=rules.'`,
			"--format=json\nexplain\tShow which rules a request matches, and why others do not.\nrules\nrules.yaml\n--rules=rules.yaml\n",
		},
	} {
		t.Run(tt.shell, func(t *testing.T) {
			path, err := exec.LookPath(tt.shell)
			if err != nil && tt.shell != "bash" {
				t.Skipf("%s is not installed", tt.shell)
			}
			if err != nil {
				t.Fatal(err)
			}
			load := map[string][]string{
				"bash": {"--norc", "-c", "source <(weir completion bash)\n" + tt.script},
				"zsh":  {"-f", "-c", "autoload -U compinit; compinit -u -D; source <(weir completion zsh)\n" + tt.script},
				"fish": {"--no-config", "-c", "weir completion fish | source\n" + tt.script},
			}[tt.shell]
			cmd := exec.CommandContext(t.Context(), path, load...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != tt.want {
				t.Errorf("%v, it says\n%s\nwant\n%s", err, out, tt.want)
			}
		})
	}
}
