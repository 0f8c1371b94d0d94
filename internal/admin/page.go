package admin

import (
	"crypto/sha256"
	_ "embed" // the page
	"encoding/base64"
	"io"
	"net/http"
	"strings"
)

// The page is one file to the browser: its style and its script are within, and nothing else may run or be loaded. It
// asks /status, /rules and /top like anybody, and so works behind a proxy that adds a path, too.
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

// integrity is how a Content-Security-Policy names a text that may be in the page.
func integrity(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// root is the page for browsers, and an index of the endpoints for everybody else.
func root(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		writeText(w, http.StatusOK, index)
		return
	}
	w.Header().Set("Content-Security-Policy", pagePolicy)
	w.Header().Set("Referrer-Policy", "no-referrer")
	header(w, http.StatusOK, "text/html; charset=utf-8")
	_, _ = io.WriteString(w, page) // as in writeText
}
