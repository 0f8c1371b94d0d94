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
	"regexp"
	"strconv"
	"strings"

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
			r.read()
		}
	}
}

// Include is a file that a rule file names.
type Include struct {
	Name string // as File.Name must have it
	At   string // where the rule file names it, as "file:line:column"
}

// fileName matches the name that follows the word values_file. It begins with its first character.
var fileName = regexp.MustCompile(`^["']?[ \t]*:\s*(?:&\S+\s+)?("(?:\\.|[^"\\])*"|'(?:''|[^'])*'|[^\s"'&*!|>[{][^\n,\]}]*)`)

// maxFileName is the maximum length of such a name, with what is before it.
const maxFileName = 4096

// Includes returns the files that a rule file names with values_file. Compile needs these among its files, too, with
// Included set, and reports what is wrong with them. It searches the text for the names, without parsing it.
func Includes(f File) (all []Include) {
	word := []byte(descriptors.FormFile)
	for done := 0; !f.Included; {
		next := bytes.Index(f.Data[done:], word)
		if next < 0 {
			break
		}
		done += next + len(word)
		found := fileName.FindSubmatchIndex(f.Data[done:min(len(f.Data), done+maxFileName)])
		if found == nil {
			continue
		}
		begin := done + found[2]
		line := 1 + bytes.LastIndexByte(f.Data[:begin], '\n')
		name, err := valuesFileName(f.Name, plainName(string(f.Data[begin:done+found[3]])))
		if err == nil && !bytes.HasPrefix(bytes.TrimSpace(f.Data[line:begin]), []byte("#")) {
			all = append(all, Include{name, positionOf(f.Name, f.Data, begin).String()})
		}
	}
	return all
}

// plainName is a name without quotes, or without a comment behind it.
func plainName(text string) string {
	if name, err := strconv.Unquote(text); err == nil && text[0] == '"' {
		return name
	}
	if text[0] == '\'' {
		return strings.ReplaceAll(text[1:len(text)-1], "''", "'")
	}
	text, _, _ = strings.Cut(text, " #")
	return strings.TrimSpace(text)
}
