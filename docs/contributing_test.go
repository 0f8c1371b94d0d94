package docs

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestContributingNamesWhatExists checks that the files and identifiers that CONTRIBUTING.md names exist.
func TestContributingNamesWhatExists(t *testing.T) {
	text, err := os.ReadFile("../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	all, references := declarations(t), 0
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllSubmatch(text, -1) {
		isReference, err := all.check(string(m[1]))
		if err != nil {
			t.Errorf("CONTRIBUTING.md: `%s`: %v", m[1], err)
		}
		if isReference {
			references++
		}
	}
	if references < 10 {
		t.Errorf("found %d references: the patterns no longer find them", references)
	}
}

func TestReferences(t *testing.T) {
	all := declarations(t)
	for reference, want := range map[string]string{
		"docs/contributing_test.go": "", "docs/": "", "./docs/...": "", "docs/*.go": "", "go.mod": "", ".golangci.yml": "",
		"testing/synctest": "", "docs.pages": "", "docs.pages()": "", "docs.declared.check": "", "limiter.Store.Take": "",
		"pkg/limiter.Store": "", "internal/test/proctest.Process.Await": "",

		"docs/contribution_test.go": "there is no such file", "dosc/docs_test.go": "there is no such file",
		"CONTRIBUTE.md": "there is no such file", "docs/*.lua": "there is no such file",
		"docs.page": "no package docs declares page", "docs.declared.pages": "no package docs declares declared.pages",
		"dosc.pages": "there is no package dosc", "pkg/limiter.Stor": "no package pkg/limiter declares Stor",
		"pkg/limit.Store": "there is no package pkg/limit",
	} {
		isReference, err := all.check(reference)
		if !isReference || (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: reference %t, error %v; want %q", reference, isReference, err, want)
		}
	}
	for _, other := range []string{"make test", "-short", "engine: redis_cell", "burst", "--rules", "/readyz", "go test ./..."} {
		if isReference, err := all.check(other); isReference || err != nil {
			t.Errorf("%s: reference %t, error %v; want none", other, isReference, err)
		}
	}
}

// declared has the identifiers that each package declares, such as Take, Store and Store.Take, by the folder of the
// package and by its name.
type declared map[string]map[string]bool

var (
	isFile       = regexp.MustCompile(`^[\w.*/-]*(/|\.(go|md|mod|lua|ya?ml|json|html|js|css|txt|sh|txtar))[\w.*/-]*$`)
	isIdentifier = regexp.MustCompile(`^((?:[\w-]+/)*[a-z]\w*)\.([A-Za-z]\w*(?:\.[A-Za-z]\w*)?)(?:\(\))?$`)
)

// check reports whether the text is the name of a file or identifier, and returns an error if there is no such thing.
// Files are relative to the root of the repository, and may have wildcards; identifiers are like limiter.Policy.Step
// or pkg/limiter.Policy.Step.
func (d declared) check(text string) (isReference bool, err error) {
	if strings.HasPrefix(text, ".tools/") || strings.HasPrefix(text, "bin/") { // made by make, not kept in git
		return false, nil
	}
	if strings.ContainsAny(text[:1], "-/") || !isFile.MatchString(text) && !isIdentifier.MatchString(text) {
		return false, nil
	}
	if isFile.MatchString(text) {
		path := strings.TrimSuffix(text, "/...")
		if found, err := filepath.Glob(filepath.Join("..", path)); err != nil || len(found) > 0 {
			return true, err
		}
		if _, err := build.Import(path, ".", build.FindOnly); err == nil { // a package of Go's, such as testing/synctest
			return true, nil
		}
	}
	m := isIdentifier.FindStringSubmatch(text)
	switch {
	case m == nil || isFile.MatchString("x."+m[2]):
		return true, errors.New("there is no such file")
	case d[m[1]] == nil:
		return true, fmt.Errorf("there is no package %s", m[1])
	case !d[m[1]][m[2]]:
		return true, fmt.Errorf("no package %s declares %s", m[1], m[2])
	}
	return true, nil
}

// declarations reads all Go files of the repository.
func declarations(t *testing.T) declared {
	t.Helper()
	d := declared{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && (name == "testdata" || name == "bin" || strings.HasPrefix(name, ".") && name != ".."):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go":
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder, _ := filepath.Rel("..", filepath.Dir(path))
		for _, name := range []string{filepath.ToSlash(folder), strings.TrimSuffix(file.Name.Name, "_test")} {
			if d[name] == nil {
				d[name] = map[string]bool{}
			}
			d.add(name, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// add adds what the file declares: functions, types, variables and constants, and methods and fields of types.
func (d declared) add(to string, file *ast.File) {
	names := d[to]
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			if decl.Recv != nil {
				name = receiver(decl.Recv.List[0].Type) + "." + name
			}
			names[name] = true
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						names[name.Name] = true
					}
				case *ast.TypeSpec:
					names[spec.Name.Name] = true
					for _, member := range members(spec.Type) {
						names[spec.Name.Name+"."+member] = true
					}
				}
			}
		}
	}
}

// receiver returns the name of a method's type.
func receiver(expr ast.Expr) string {
	switch expr := expr.(type) {
	case *ast.StarExpr:
		return receiver(expr.X)
	case *ast.IndexExpr: // with a type parameter
		return receiver(expr.X)
	case *ast.Ident:
		return expr.Name
	}
	return ""
}

// members returns the fields of a struct, or the methods of an interface.
func members(expr ast.Expr) (names []string) {
	var list *ast.FieldList
	switch expr := expr.(type) {
	case *ast.StructType:
		list = expr.Fields
	case *ast.InterfaceType:
		list = expr.Methods
	default:
		return nil
	}
	for _, field := range list.List {
		for _, name := range field.Names {
			names = append(names, name.Name)
		}
	}
	return names
}
