package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestSiteListsEveryPage checks that nav of mkdocs.yml has each page of docs/, so that readers of the site find it.
// Single decisions are listed by adr/README.md instead.
func TestSiteListsEveryPage(t *testing.T) {
	text, err := os.ReadFile("../mkdocs.yml")
	if err != nil {
		t.Fatal(err)
	}
	_, nav, found := strings.Cut(string(text), "\nnav:\n")
	if !found {
		t.Fatal("mkdocs.yml has no nav")
	}
	var tree any
	if err := yaml.Unmarshal([]byte(nav), &tree); err != nil {
		t.Fatal(err)
	}
	listed := map[string]int{}
	walkNav(tree, func(page string) { listed[page]++ })

	for _, page := range pages(t) {
		name := filepath.ToSlash(page)
		if !strings.HasPrefix(name, "../") && !strings.HasPrefix(name, "adr/0") && listed[name] == 0 {
			t.Errorf("nav of mkdocs.yml does not list %s: add its line, at its place and with a title", name)
		}
	}
	for page, times := range listed {
		if _, err := os.Stat(page); err != nil {
			t.Errorf("nav of mkdocs.yml lists %s, which does not exist", page)
		}
		if times > 1 {
			t.Errorf("nav of mkdocs.yml lists %s %d times", page, times)
		}
	}
}

// walkNav calls found with each page of the tree.
func walkNav(tree any, found func(page string)) {
	switch tree := tree.(type) {
	case string:
		if !strings.HasPrefix(tree, "https:") {
			found(tree)
		}
	case []any:
		for _, item := range tree {
			walkNav(item, found)
		}
	case map[string]any:
		for _, item := range tree {
			walkNav(item, found)
		}
	}
}
