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

// File is a rule file of one or several YAML documents, or a file of values: its Name as errors show it, and its Data.
// Included says that it is no rule file, but one that a rule file names: see Includes.
type File = reader.File

// Include is a file that a rule file names: its Name, as File.Name must have it, and At, where the rule file names it,
// as "file:line:column".
type Include = reader.Include

// Compile reads the files and compiles them into one Set. Its error is descriptors.Errors.
func Compile(files []File) (*descriptors.Set, error) {
	set, err := reader.Compile(files)
	return (*descriptors.Set)(set), err
}

// Includes returns the files that a rule file names with values_file. Give these to Compile, too, with Included set.
// Compile reports what is wrong with them.
func Includes(f File) []Include { return reader.Includes(f) }
