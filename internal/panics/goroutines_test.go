package panics_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// notInside lists folders with code that never runs as a guest in another process, and package panics.
var notInside = []string{"internal/cli", "internal/test", "pkg/limiter/limitertest", "internal/panics"}

// Where Weir may be a guest, every goroutine of a go statement, sync.WaitGroup.Go or AfterFunc must use package panics,
// or recover from panics. Every function that C calls must, too.
func TestEveryGoroutine(t *testing.T) {
	root := filepath.Join("..", "..")
	started := 0
	for _, top := range []string{"internal", "pkg", "cmd/envoymodule"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			folder, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			if slices.Contains(notInside, filepath.ToSlash(folder)) {
				return fs.SkipDir
			}
			found, bare, err := goroutinesOf(path)
			for _, at := range bare {
				t.Errorf("%s: a panic in this goroutine would end Envoy: start it by internal/panics", strings.TrimPrefix(at, root))
			}
			started += found
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if started < 20 {
		t.Errorf("found %d goroutines: the test looks in the wrong place", started)
	}
}

// goroutinesOf finds the goroutines in testdata.
func TestGoroutinesOf(t *testing.T) {
	found, bare, err := goroutinesOf("testdata")
	if err != nil || found != 14 || len(bare) != 5 {
		t.Errorf("%d goroutines of which these are bare: %q, %v; want 14 and 5", found, bare, err)
	}
}

// goroutinesOf returns the number of goroutines that the package in a folder starts, or C with an exported function,
// and the positions of those that do not catch panics. A context's cancel needs no guard.
func goroutinesOf(folder string) (found int, bare []string, err error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return 0, nil, err
	}
	var files []*ast.File
	positions, guarded := token.NewFileSet(), map[string]bool{} // functions, by name
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(positions, path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return 0, nil, err
		}
		files = append(files, file)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && isGuarded(f.Body) {
				guarded[f.Name.Name] = true
			}
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			var what ast.Node
			switch n := n.(type) {
			case *ast.FuncDecl:
				if !isCalledByC(n) {
					return true
				}
				if !isGuarded(n.Body) && !calls(n.Body, guarded) {
					what = n
				}
			case *ast.GoStmt:
				what = n.Call.Fun
				if isGuarded(n.Call) || guarded[nameOf(n.Call.Fun)] {
					what = nil
				}
			case *ast.CallExpr:
				of, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || of.Sel.Name != "Go" && of.Sel.Name != "AfterFunc" {
					return true
				}
				if f := n.Args[len(n.Args)-1]; !isGuarded(n) && !guarded[nameOf(f)] && nameOf(f) != "cancel" {
					what = f
				}
			default:
				return true
			}
			found++
			if what != nil {
				bare = append(bare, fmt.Sprint(positions.Position(n.Pos())))
			}
			return true
		})
	}
	return found, bare, nil
}

// isGuarded reports whether the code calls package panics or recover.
func isGuarded(code ast.Node) (is bool) {
	ast.Inspect(code, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			from, _ := call.Fun.(*ast.SelectorExpr)
			if from != nil {
				if of, ok := from.X.(*ast.Ident); ok && of.Name == "panics" {
					is = true
				}
			}
			if name := nameOf(call.Fun); name == "recover" || name == "survive" {
				is = true
			}
		}
		return !is
	})
	return is
}

// isCalledByC reports whether cgo exports the function.
func isCalledByC(f *ast.FuncDecl) bool {
	return f.Doc != nil && slices.ContainsFunc(f.Doc.List, func(c *ast.Comment) bool {
		return strings.HasPrefix(c.Text, "//export ")
	})
}

// calls reports whether the code calls one of the functions.
func calls(code ast.Node, functions map[string]bool) (does bool) {
	ast.Inspect(code, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		does = does || ok && functions[nameOf(call.Fun)]
		return !does
	})
	return does
}

// nameOf returns the name of the function or method in an expression.
func nameOf(f ast.Expr) string {
	switch f := f.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	default:
		return ""
	}
}
