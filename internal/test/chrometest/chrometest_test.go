package chrometest_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/chrometest"
)

// A page runs, keys arrive, and the console shows what the page's policy refuses.
func TestBrowser(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", "img-src 'none'")
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(`<!doctype html><input autofocus><img src="/x.png"><script>document.title = "it runs"</script>`))
	}))
	defer s.Close()
	b := chrometest.Start(t)
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
