package admin

import (
	"crypto/sha256"
	_ "embed" // for the page
	"encoding/base64"
	"io"
	"net/http"
	"strings"
)

// The page is a single file that includes its style and script; nothing else may be loaded or run. It reads /status,
// /rules and /top by relative paths, so it works behind a proxy that adds a path.
var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageStyle string
	//go:embed page/page.js
	pageScript string

	page = strings.NewReplacer("{{STYLE}}", pageStyle, "{{SCRIPT}}", pageScript).Replace(pageHTML)

	pagePolicy = "default-src 'none'; connect-src 'self'; img-src data:; style-src '" + integrity(pageStyle) +
		"'; script-src '" +
		integrity(pageScript) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

// integrity returns the hash by which a Content-Security-Policy allows a text in the page.
func integrity(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// root serves the page to browsers, and a list of endpoints to other clients.
func (h *handler) root(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		writeText(w, http.StatusOK, h.index)
		return
	}
	w.Header().Set("Content-Security-Policy", pagePolicy)
	w.Header().Set("Referrer-Policy", "no-referrer")
	header(w, http.StatusOK, "text/html; charset=utf-8")
	_, _ = io.WriteString(w, page) // as in writeText
}
