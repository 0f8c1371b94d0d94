package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// license is a license or notice file of code in the program.
type license struct {
	module string // path of the module; "std" for Go's standard library
	name   string // of the file, relative to the module
	text   []byte
	kinds  []string // detected SPDX identifiers; none for a notice
}

// allowedKinds are the licenses of unmodified code that a program under Apache-2.0 may contain with their texts. Any
// other license fails the release, so that somebody checks it.
var allowedKinds = map[string]bool{
	"Apache-2.0": true, "MIT": true, "BSD-2-Clause": true, "BSD-3-Clause": true, "ISC": true, "0BSD": true,
	"MPL-2.0": true, "Unlicense": true, "CC0-1.0": true, "GooglePatentClause": true, "GooglePatentsFile": true,
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)([.-].*)?$`)

// minCovered is the minimum part of a file, in percent, that licensecheck must recognize.
const minCovered = 60

// listedPackage is the output of `go list -json` for a package.
type listedPackage struct {
	Dir, ImportPath string
	Standard        bool
	Module          *struct {
		Path, Dir string
		Main      bool
	}
}

// collectLicenses returns the license files of Go and of every module in the program. It searches the folders from each
// package up to its module.
func collectLicenses(ctx context.Context, b *build, env []string) ([]license, error) {
	listed, err := output(ctx, b.src, env, "go", "list", "-deps", "-json=Dir,ImportPath,Standard,Module", command)
	if err != nil {
		return nil, err
	}
	goroot, err := output(ctx, b.src, env, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	folders := map[string]map[string]bool{"std": {goroot: true}} // by module
	roots := map[string]string{"std": goroot}
	for decoder := json.NewDecoder(strings.NewReader(listed)); ; {
		var p listedPackage
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return readLicenses(folders, roots)
		case err != nil:
			return nil, err
		case p.Standard || p.Module == nil || p.Module.Main:
			continue
		}
		root := p.Module.Dir
		roots[p.Module.Path] = root
		if folders[p.Module.Path] == nil {
			folders[p.Module.Path] = map[string]bool{}
		}
		for dir := p.Dir; ; dir = filepath.Dir(dir) {
			folders[p.Module.Path][dir] = true
			if dir == root || len(dir) <= len(root) {
				break
			}
		}
	}
}

func readLicenses(folders map[string]map[string]bool, roots map[string]string) (all []license, err error) {
	for _, module := range slices.Sorted(maps.Keys(folders)) {
		known := false
		for _, dir := range slices.Sorted(maps.Keys(folders[module])) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				return nil, err
			}
			for _, e := range entries {
				if !e.Type().IsRegular() || !licenseFile.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
					continue
				}
				l, err := readLicense(module, roots[module], filepath.Join(dir, e.Name()))
				if err != nil {
					return nil, err
				}
				known = known || len(l.kinds) > 0
				all = append(all, l)
			}
		}
		if !known {
			return nil, fmt.Errorf("%s has no license that is known: look at it, and name it in tools/release", module)
		}
	}
	return all, nil
}

func readLicense(module, root, path string) (license, error) {
	name, err := filepath.Rel(root, path)
	if err != nil {
		return license{}, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return license{}, err
	}
	l := license{module: module, name: filepath.ToSlash(name), text: text}
	found := licensecheck.Scan(text)
	if found.Percent < minCovered {
		return l, nil // a notice
	}
	for _, m := range found.Match {
		if !allowedKinds[m.ID] {
			return l, fmt.Errorf("%s has the license %s: may a program under Apache-2.0 contain it?", path, m.ID)
		}
		if !slices.Contains(l.kinds, m.ID) {
			l.kinds = append(l.kinds, m.ID)
		}
	}
	return l, nil
}

// licenseOf returns the license in a module's top-level LICENSE as an SPDX expression.
func licenseOf(all []license, module string) string {
	for _, l := range all {
		if l.module == module && len(l.kinds) > 0 && !strings.Contains(l.name, "/") {
			return strings.Join(l.kinds, " AND ")
		}
	}
	return ""
}
