// Package rulefile reads Weir's rules from YAML files.
//
// [Compile] takes all files of a rule set and returns the set, or everything that is wrong with any of them, each error
// with file, line, column and what to write instead:
//
//	set, err := rulefile.Compile([]rulefile.File{{Name: "shop.yaml", Data: text}})
//
// docs/reference/rules.md has the language. Every valid rule file of envoyproxy/ratelimit means the same here.
//
// A rule can name a file of values (values_file). This package opens no files: [Includes] returns what a rule file
// names, and Compile needs these among its files. Package reload reads them all, and again when one changes.
package rulefile

import (
	reader "github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// File is a rule file of one or several YAML documents, or a file of values.
type File struct {
	Name string // as errors show it
	Data []byte
	// Included says that it is no rule file, but one that a rule file names: see Includes.
	Included bool
}

// Compile reads the files and compiles them into one Set. Its error is descriptors.Errors.
func Compile(files []File) (*descriptors.Set, error) {
	all := make([]reader.File, len(files))
	for i, f := range files {
		all[i] = reader.File(f)
	}
	set, err := reader.Compile(all)
	return (*descriptors.Set)(set), err
}

// Include is a file that a rule file names.
type Include struct {
	Name string // as File.Name must have it
	At   string // where the rule file names it, as "file:line:column"
}

// Includes returns the files that a rule file names with values_file. Give these to Compile, too, with Included set.
// Compile reports what is wrong with them.
func Includes(f File) (all []Include) {
	for _, to := range reader.Includes(reader.File(f)) {
		all = append(all, Include{to.Name, to.At.String()})
	}
	return all
}
