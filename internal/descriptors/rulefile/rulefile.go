// Package rulefile reads rule files: YAML text becomes a descriptors.Set.
//
// [Compile] takes the files of a rule set and returns the set, or everything that is wrong with any of them, each
// error with file, line, column and what to write instead:
//
//	set, err := rulefile.Compile([]rulefile.File{{Name: "shop.yaml", Data: text}})
//
// docs/reference/rules.md has the language. Every valid rule file of envoyproxy/ratelimit means the same here.
//
// A rule can name a file of values (values_file). This package opens no files: [Includes] returns what a rule file
// names, and Compile wants these among its files. Package reload reads them all, and again when one changes.
package rulefile

import (
	"bytes"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// File is one rule file, one or several YAML documents, or a file of values.
type File struct {
	Name string // as errors show it
	Data []byte
	// Included says that it is no rule file, but one that a rule file names: see Includes.
	Included bool
}

// Compile reads the files and compiles them into one Set. Its error is descriptors.Errors: everything that is wrong
// with any of the files.
func Compile(files []File) (*descriptors.Set, error) {
	return CompileFor(descriptors.Process{}, files)
}

// CompileFor is Compile for a process that fills in what the files leave to it. Its error may be that of process.Rest.
func CompileFor(process descriptors.Process, files []File) (*descriptors.Set, error) {
	b := descriptors.NewBuilder(process)
	Add(b, files)
	return b.Build()
}

// Add reads the files into b: for a Set that has other descriptors, too.
func Add(b *descriptors.Builder, files []File) {
	values := map[string][]byte{}
	for _, f := range files {
		if f.Included {
			values[f.Name] = f.Data
		}
	}
	together := &grown{}
	for _, f := range files {
		if !f.Included {
			r := newReader(f, b)
			r.grown = together
			r.values = values
			r.take = func(domain string, d *descriptors.Descriptor) { b.Add(domain, d) }
			r.read()
		}
	}
}

// Include is a file that a rule file names.
type Include struct {
	Name string // as File.Name must have it
	At   string // where the rule file names it, as "file:line:column"
}

// Includes returns the files that a rule file names with values_file. Compile needs these among its files, too, with
// Included set, and reports what is wrong with them. The Rest of the process pauses the parsing.
func Includes(process descriptors.Process, f File) (all []Include) {
	if !MayInclude(f) {
		return nil
	}
	var collect func(d *descriptors.Descriptor)
	collect = func(d *descriptors.Descriptor) {
		if d.Match.Form == descriptors.FormFile && len(d.Match.Items) > 0 {
			file := d.Match.Items[0]
			if name, err := valuesFileName(f.Name, file.Text); err == nil {
				all = append(all, Include{name, file.At.String()})
			}
		}
		for _, child := range d.Descriptors {
			collect(child)
		}
	}
	r := newReader(f, descriptors.NewBuilder(process))
	r.take = func(_ string, d *descriptors.Descriptor) { collect(d) }
	r.read()
	return all
}

// MayInclude is false if Includes has nothing to look for.
func MayInclude(f File) bool {
	return !f.Included && bytes.Contains(f.Data, []byte(descriptors.FormFile))
}
