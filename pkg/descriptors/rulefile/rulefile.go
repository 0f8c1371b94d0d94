// Package rulefile reads Weir's rules from YAML files.
//
// [Compile] takes all files of a rule set and returns the set, or all errors with file, line, column and correction:
//
//	set, err := rulefile.Compile([]rulefile.File{{Name: "shop.yaml", Data: text}})
//
// docs/reference/rules.md describes the language. A valid rule file of envoyproxy/ratelimit has the same meaning here.
//
// A rule can name a file of values (values_file). This package opens no files. [Includes] returns the files that a rule
// file names, which you must also pass to Compile. Package reload reads all of these files, and again after a change.
package rulefile

import (
	reader "github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// File is a rule file with one or several YAML documents, or a file of values. Name is the file's name in errors, and
// Data its content. Included must be set for a file of values: see Includes.
type File = reader.File

// Include is a file that a rule file names. Its File must have the same Name. At is the reference's "file:line:column".
type Include = reader.Include

// Compile reads the files and compiles them into one Set. Its error is descriptors.Errors.
func Compile(files []File) (*descriptors.Set, error) {
	set, err := reader.Compile(files)
	return (*descriptors.Set)(set), err
}

// Includes returns the files that a rule file names with values_file. Pass them to Compile, too, with Included set.
func Includes(f File) []Include { return reader.Includes(f) }
