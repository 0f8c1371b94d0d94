package rulefiles

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

// looked is how much of a file is looked at to tell whether there are rules in it, in bytes.
const looked = 64 << 10

// switchedOff are endings by which people keep a file from being read, or of files about rules.
var switchedOff = []string{
	".bak", ".old", ".orig", ".rej", ".swp", ".tmp", ".disabled", ".off", ".example", ".sample", ".dist", ".md", ".rst", ".adoc", ".html",
}

// What every rule file has, as YAML and as JSON.
var (
	hasDomain      = regexp.MustCompile(`(?m)(^\s*domain|"domain")\s*:`)
	hasDescriptors = regexp.MustCompile(`(?m)(^\s*descriptors|"descriptors")\s*:`)
)

// Unread are warnings of the files in the directories among the paths that look like rules, and are not read: serve reads
// *.yaml and *.yml. envoyproxy/ratelimit reads every file.
func Unread(ctx context.Context, paths ...string) (warnings descriptors.Errors) {
	for _, name := range (reload.Files{Paths: paths}).Skipped(ctx) {
		ext := strings.ToLower(filepath.Ext(name))
		if slices.Contains(switchedOff, ext) || strings.HasSuffix(name, "~") || !looksLikeRules(ctx, name) {
			continue
		}
		warnings = append(warnings, &descriptors.Error{
			File: name, Line: 1, Column: 1, Code: descriptors.WarnNotRead,
			Msg: "this file looks like rules, but is not read, because of its name; rename it to " + readName(filepath.Base(name)) +
				", or move it out of the rules' folder",
		})
	}
	return warnings
}

// readName is a name like that one by which a file is read.
func readName(name string) string {
	base := strings.TrimSuffix(name, filepath.Ext(name))
	if ext := filepath.Ext(base); ext == ".yaml" || ext == ".yml" {
		return base // rules.yaml.txt
	}
	return base + ".yaml"
}

func looksLikeRules(ctx context.Context, name string) bool {
	text, err := fileread.Do(ctx, fileread.Default, func(s *fileread.Session) (text []byte, err error) {
		err = s.Step(name, nil, func() error {
			text, err = beginning(name)
			return err
		})
		return text, err
	})
	return err == nil && hasDomain.Match(text) && hasDescriptors.Match(text)
}

func beginning(name string) ([]byte, error) {
	f, err := os.Open(name) //nolint:gosec // a file beside the rules
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	return io.ReadAll(io.LimitReader(f, looked))
}
