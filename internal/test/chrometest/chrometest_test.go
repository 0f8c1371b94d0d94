package chrometest

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

func TestMain(m *testing.M) { os.Exit(Share(m)) }

// A page runs, keys arrive, and the console shows what the page's policy refuses.
func TestBrowser(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", "img-src 'none'")
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(`<!doctype html><input autofocus><img src="/x.png"><script>document.title = "it runs"</script>`))
	}))
	defer s.Close()
	b := Start(t)
	b.Open(s.URL)
	if title := b.Text("document.title"); title != "it runs" {
		t.Errorf("title %q", title)
	}
	b.Await("document.activeElement === document.querySelector('input')")
	for _, key := range []string{"h", "i"} {
		b.Press(key)
	}
	b.Await("document.activeElement.value === 'hi'")
	if said := strings.Join(b.Console(), "\n"); !strings.Contains(said, "Content Security Policy") {
		t.Errorf("the console does not show the refused image:\n%s", said)
	}
	if asked := b.URLs(); len(asked) == 0 || !strings.HasPrefix(asked[0], s.URL) {
		t.Errorf("asked: %v", asked)
	}
}

// Tests at the same time have one Chromium and pages of their own: neither sees what the other stores, asks for or
// writes, and both have the focus.
func TestShare(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Cache-Control", "max-age=3600")
		page := `<!doctype html><input autofocus><script>console.log("NAME")</script>`
		_, _ = w.Write([]byte(strings.ReplaceAll(page, "NAME", r.URL.Query().Get("name"))))
	}))
	defer s.Close()
	pages := map[string]*Browser{"one": Start(t), "two": Start(t)}
	for name, b := range pages {
		b.Open(s.URL + "/?name=" + name)
		if kept := b.Text(`String(localStorage.name) + document.cookie`); kept != "undefined" {
			t.Errorf("page %s finds %s", name, kept)
		}
		b.Eval(`localStorage.name = document.cookie = "` + name + `"`)
	}
	for name, b := range pages {
		if b.Eval(`document.hasFocus() && document.visibilityState === "visible"`) != true {
			t.Errorf("page %s has not the focus, or is hidden", name)
		}
		for key := range strings.SplitSeq(name, "") {
			b.Press(key)
		}
		b.Await(`document.activeElement.value === "` + name + `"`)
		if said := b.Console(); len(said) != 1 || !strings.Contains(said[0], name) {
			t.Errorf("the console of page %s has %q", name, said)
		}
		for _, url := range b.URLs() {
			if url != s.URL+"/?name="+name && !strings.HasSuffix(url, "/favicon.ico") {
				t.Errorf("page %s asks for %s", name, url)
			}
		}
	}
	if pages["one"].chromium != pages["two"].chromium {
		t.Error("each page has a Chromium of its own")
	}
}

// When the shared Chromium has died, the next test gets another one.
func TestShareAgain(t *testing.T) {
	b := Start(t)
	if err := chromedp.FromContext(b.ctx).Browser.Process().Kill(); err != nil {
		t.Fatal("Chromium cannot be killed:", err)
	}
	<-b.ctx.Done()
	next := Start(t)
	if next.chromium == b.chromium || next.Eval("1 + 1") != 2.0 {
		t.Error("the next page has no Chromium that works")
	}
}
