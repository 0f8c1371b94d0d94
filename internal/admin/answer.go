package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// number parses a parameter of a query.
func number(query url.Values, name string, otherwise, least, most int) (int, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, invalid("%s: must be a number between %d and %d, got %q", name, least, most, text)
	}
	return n, nil
}

func readJSON(r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return invalid("the body is not the JSON object of this path: %s", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return invalid("the body must be a single JSON object, but text follows it; send only the object")
	}
	return nil
}

// statusError is an error with the status and headers of its response.
type statusError struct {
	status int
	msg    string
	header http.Header
}

func (e *statusError) Error() string { return e.msg }

func refused(status int, msg string) error { return &statusError{status: status, msg: msg} }

func invalid(format string, args ...any) error {
	return refused(http.StatusBadRequest, fmt.Sprintf(format, args...))
}

func isInvalid(err error) bool {
	known, ok := errors.AsType[*statusError](err)
	return ok && known.status == http.StatusBadRequest
}

// maxError is the maximum length of an error in a response, in bytes, because an error may quote the client's request.
const maxError = 2 << 10

// writeError responds with an error. All errors have this form.
func writeError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	known, isKnown := errors.AsType[*statusError](err)
	switch {
	case isKnown:
		status = known.status
		maps.Copy(w.Header(), known.header)
	case errors.Is(err, limiter.ErrUnavailable):
		status = http.StatusServiceUnavailable
	case errors.Is(err, errNotFound):
		status = http.StatusNotFound
	}
	writeJSON(w, status, adminapi.Error{Error: logging.Shorten(err.Error(), maxError)})
}

// answers returns a handler that responds with the result of f as JSON.
func answers[T any](f func(r *http.Request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := f(r)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, answer)
	}
}

func writeText(w http.ResponseWriter, status int, text string) {
	header(w, status, "text/plain; charset=utf-8")
	_, _ = io.WriteString(words.Plain{Writer: w}, text) // on error the client has disconnected
}

// maxIndented is the maximum size of an indented response in bytes, because indentation can make it ten times as large.
const maxIndented = 32 << 10

func writeJSON(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if len(text) < maxIndented {
		text, err = json.MarshalIndent(v, "", "  ")
	}
	if err != nil {
		writeError(w, err)
		return
	}
	header(w, status, "application/json")
	_, _ = words.Plain{Writer: w}.Write(append(text, '\n')) // as in writeText
}

func header(w http.ResponseWriter, status int, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
}

// missing responds to requests for unknown paths and methods.
func (h *handler) missing(w http.ResponseWriter, r *http.Request) {
	what := r.Method + " " + r.URL.Path
	for _, route := range h.routes() {
		path := strings.TrimSuffix(route.Path, "{$}")
		if path == r.URL.Path || route.Versioned && api+path == r.URL.Path {
			methods := strings.Replace(route.Method, "GET", "GET, HEAD", 1)
			w.Header().Set("Allow", methods)
			writeError(w, refused(http.StatusMethodNotAllowed, what+" is not supported; this path supports "+methods))
			return
		}
	}
	writeError(w, refused(http.StatusNotFound, what+" does not exist; GET / lists all paths"))
}
