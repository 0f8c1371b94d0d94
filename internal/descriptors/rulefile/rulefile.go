// Package rulefile compiles rule files in YAML into a descriptors.Set.
//
// [Compile] takes the files of a rule set. It returns the set, or all errors in all files, each with file, line, column
// and what to write instead:
//
//	set, err := rulefile.Compile([]rulefile.File{{Name: "shop.yaml", Data: text}})
//
// docs/reference/rules.md describes the language. Valid rule files of envoyproxy/ratelimit have the same meaning here.
//
// A rule can name a file of values (values_file). This package opens no files: [Includes] returns the names of the
// values files, and Compile expects them among its files. Package reload reads and watches all of them.
package rulefile

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// File is a rule file, which is one or several YAML documents, or a values file.
type File struct {
	Name string // name in errors
	Data []byte
	// Included marks a values file that a rule file names: see Includes.
	Included bool
}

// Compile compiles the files into one Set. The error is descriptors.Errors with all errors in all files.
func Compile(files []File) (*descriptors.Set, error) {
	return CompileFor(descriptors.Process{}, files)
}

// CompileFor compiles as Compile does, with the settings of a process. It may also return an error of process.Rest.
func CompileFor(process descriptors.Process, files []File) (*descriptors.Set, error) {
	b := descriptors.NewBuilder(process)
	Add(b, files)
	return b.Build()
}

// Add adds the rules of the files to b, which may have other descriptors.
func Add(b *descriptors.Builder, files []File) {
	values := map[string][]byte{}
	for _, f := range files {
		if f.Included {
			values[f.Name] = f.Data
		}
	}
	together := &grown{}
	for _, f := range files {
		if !f.Included && mayHaveDefaults(f) {
			r := newReader(f, b)
			r.grown = together
			r.readDefaults()
		}
	}
	for _, f := range files {
		if !f.Included {
			r := newReader(f, b)
			r.grown = together
			r.values = values
			r.read()
		}
	}
}

// Include is a values file that a rule file names.
type Include struct {
	Name string // the name that File.Name must have
	At   string // position of the name in the rule file, as "file:line:column"
}

// fileName matches the colon and name that follow the word values_file.
var fileName = regexp.MustCompile(`^["']?[ \t]*:\s*(?:&\S+\s+)?("(?:\\.|[^"\\])*"|'(?:''|[^'])*'|[^\s"'&*!|>[{][^\n,\]}]*)`)

// maxFileName is the maximum length of a match of fileName, in bytes.
const maxFileName = 4096

// Includes returns the values files that a rule file names. Compile needs them among its files, with Included set, and
// reports their errors. Includes searches the text for the names and does not parse it.
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

// plainName returns a name without its quotes or a comment after it.
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
