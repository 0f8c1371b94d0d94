//go:build e2e

package docs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
)

// TestSite builds the site as `make site` does, and uses it in a real browser, from files and without a server: search
// finds a word and ranks decisions last, nothing comes from another host, and no page is wider than a phone.
func TestSite(t *testing.T) {
	t.Parallel()
	python, err := filepath.Abs("../.tools/venv/bin/python") // bin/mkdocs runs only where it was installed first
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(python); err != nil {
		t.Fatalf("%v: `scripts/tools.sh site` installs MkDocs", err)
	}
	site := t.TempDir()
	build := exec.Command(python, "-m", "mkdocs", "build", "--site-dir", site)
	build.Dir = ".."
	build.Env = append(os.Environ(), "NO_MKDOCS_2_WARNING=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("mkdocs build: %v\n%s", err, out)
	}
	for _, pattern := range []string{"*.go", "*/*.go"} {
		if found, err := filepath.Glob(filepath.Join(site, pattern)); err != nil || len(found) > 0 {
			t.Errorf("the site has %q, error %v: want no Go files", found, err)
		}
	}

	var index struct {
		Docs []struct {
			Location string
			Boost    float64
		}
	}
	if text, err := os.ReadFile(filepath.Join(site, "search", "search_index.json")); err != nil {
		t.Error(err)
	} else if err := json.Unmarshal(text, &index); err != nil {
		t.Error(err)
	}
	for _, d := range index.Docs {
		if isDecision := strings.HasPrefix(d.Location, "adr/"); isDecision != (d.Boost == 0.2) {
			t.Errorf("search ranks %s with boost %g, want 0.2 for decisions alone", d.Location, d.Boost)
		}
	}

	browser := partnertest.StartBrowser(t)
	browser.Look(1280, 900, false)
	browser.Open("file://" + filepath.Join(site, "index.html"))
	browser.Eval(`document.querySelector("label.md-header__button[for=__search]").click()`)
	browser.Await(`document.activeElement.matches(".md-search__input")`)
	for _, key := range "glossary" {
		browser.Press(string(key))
	}
	browser.Await(`document.querySelectorAll(".md-search-result__link").length > 0`)
	first := browser.Text(`document.querySelector(".md-search-result__link").href`)
	if !strings.Contains(first, "/glossary.html") {
		t.Errorf("search for glossary finds %s first", first)
	}

	for _, page := range []string{"index", "comparison", "reference/rules"} {
		for _, look := range []struct {
			name  string
			width int
			dark  bool
		}{{"light", 1280, false}, {"dark", 1280, true}, {"narrow", 390, false}} {
			browser.Look(look.width, 900, look.dark)
			browser.Open("file://" + filepath.Join(site, page+".html"))
			browser.Await(`document.fonts.status == "loaded"`)
			if wide := browser.Eval(`document.documentElement.scrollWidth > innerWidth`); wide != false {
				t.Errorf("%s, %s: the page is wider than the window", page, look.name)
			}
			want := map[bool]string{false: "default", true: "slate"}[look.dark]
			if scheme := browser.Text(`document.body.getAttribute("data-md-color-scheme")`); scheme != want {
				t.Errorf("%s, %s: color scheme %s, want %s", page, look.name, scheme, want)
			}
		}
	}
	for _, url := range browser.URLs() {
		if !strings.HasPrefix(url, "file:") && !strings.HasPrefix(url, "data:") && !strings.HasPrefix(url, "about:") &&
			!strings.HasPrefix(url, "blob:") {
			t.Errorf("a page asks for %s", url)
		}
	}
	if lines := browser.Console(); len(lines) > 0 {
		t.Errorf("the console has %q", lines)
	}
}
