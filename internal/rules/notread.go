package rules

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/fileread"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// headSize is how much of a file is searched for rules, in bytes.
const headSize = 64 << 10

// ignoredEndings are those by which people keep a file from being read, and those of documents.
var ignoredEndings = []string{
	".bak", ".old", ".orig", ".rej", ".swp", ".tmp", ".disabled", ".off", ".example", ".sample", ".dist",
	".md", ".rst", ".adoc", ".html",
}

// Every rule file has these two keys, in YAML or in JSON.
var (
	hasDomain      = regexp.MustCompile(`(?m)(^\s*domain|"domain")\s*:`)
	hasDescriptors = regexp.MustCompile(`(?m)(^\s*descriptors|"descriptors")\s*:`)
)

// NotRead returns a warning for each file in the directories among the paths that looks like rules and is not read:
// Weir reads *.yaml and *.yml, while envoyproxy/ratelimit reads every file.
func NotRead(ctx context.Context, paths ...string) (warnings descriptors.Errors) {
	for _, name := range (reload.Files{Paths: paths}).Skipped(ctx) {
		ext := strings.ToLower(filepath.Ext(name))
		if slices.Contains(ignoredEndings, ext) || strings.HasSuffix(name, "~") || !looksLikeRules(ctx, name) {
			continue
		}
		warnings = append(warnings, &descriptors.Error{
			File: name, Line: 1, Column: 1, Code: descriptors.WarnNotRead,
			Msg: "this file looks like rules, but is not read, because of its name; rename it to " +
				readableName(filepath.Base(name)) +
				", or move it out of the rules' folder",
		})
	}
	return warnings
}

// readableName is the name under which the file would be read.
func readableName(name string) string {
	base := strings.TrimSuffix(name, filepath.Ext(name))
	if ext := filepath.Ext(base); ext == ".yaml" || ext == ".yml" {
		return base // rules.yaml.txt
	}
	return base + ".yaml"
}

func looksLikeRules(ctx context.Context, name string) bool {
	text, err := fileread.Do(ctx, fileread.Default, func(s *fileread.Session) (text []byte, err error) {
		err = s.Step(name, nil, func() error {
			text, err = readHead(name)
			return err
		})
		return text, err
	})
	return err == nil && hasDomain.Match(text) && hasDescriptors.Match(text)
}

func readHead(name string) ([]byte, error) {
	f, err := os.Open(name) //nolint:gosec // a file beside the rules
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	return io.ReadAll(io.LimitReader(f, headSize))
}
