package docs

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPackagesAreExplained checks that each public package has a comment that explains it, and an example of every
// function that makes one of its types.
func TestPackagesAreExplained(t *testing.T) {
	// Whoever implements a store uses limitertest, in a test of his own.
	const withoutExample = "limitertest"
	packages := 0
	err := filepath.WalkDir("../pkg", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() == "testdata" {
			return err
		}
		p := parsedPackage(t, dir)
		if p == nil {
			return nil
		}
		packages++
		if words := len(strings.Fields(p.Doc)); words < 50 {
			t.Errorf("%s: the package's comment has %d words, want some that explain it", dir, words)
		}
		if d.Name() == withoutExample {
			return nil
		}
		if len(p.Examples) == 0 && !hasExamples(p) {
			t.Errorf("%s has no example", dir)
		}
		for _, made := range p.Types {
			for _, f := range made.Funcs {
				examples := len(f.Examples) + len(made.Examples)
				if f.Name == "New" {
					examples += len(p.Examples)
				}
				if strings.HasPrefix(f.Name, "New") && examples == 0 {
					t.Errorf("%s.%s has no example", dir, f.Name)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if packages < 8 {
		t.Errorf("found %d packages: this test no longer finds them", packages)
	}
}

func hasExamples(p *doc.Package) bool {
	has := func(f *doc.Func) bool { return len(f.Examples) > 0 }
	return slices.ContainsFunc(p.Funcs, has) || slices.ContainsFunc(p.Types, func(made *doc.Type) bool {
		return len(made.Examples) > 0 || slices.ContainsFunc(made.Funcs, has) || slices.ContainsFunc(made.Methods, has)
	})
}

// parsedPackage is the package in a directory with its examples, nil if there is none.
func parsedPackage(t *testing.T, dir string) *doc.Package {
	t.Helper()
	set := token.NewFileSet()
	var files []*ast.File
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(set, name, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		return nil
	}
	p, err := doc.NewFromFiles(set, files, "github.com/weir-ratelimit/weir/"+strings.TrimPrefix(filepath.ToSlash(dir), "../"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
