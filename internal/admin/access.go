package admin

import (
	"context"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// protect refuses requests that change state or take a profile unless authorize accepts them.
func (h *handler) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, api)
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		isOpen := reads && !strings.HasPrefix(path, debug) && path != jsonPath || h.asksForDecision(r)
		if !isOpen {
			if err := h.authorize(r); err != nil {
				writeError(w, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// onSocket is the context key of requests through the admin socket.
type onSocket struct{}

// NewSocketServer returns an HTTP server for the admin socket, which accepts every request. handler is the Handler of
// NewServer. The server does not listen yet.
func NewSocketServer(handler http.Handler) *http.Server {
	return newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), onSocket{}, true)))
	}))
}

// authorize returns an error unless the request may change state and see the values of keys, because it comes through
// the admin socket or has a client certificate or the token. Its address proves nothing, because a proxy on the same
// machine sends other clients' requests from loopback: docs/adr/0042.
func (h *handler) authorize(r *http.Request) error {
	switch {
	case r.Context().Value(onSocket{}) != nil:
		return nil
	case h.hasCertificate(r):
		return nil
	case h.Token != nil:
		return h.checkToken(r)
	case h.HTTPTLSClientCA != "":
		return refused(http.StatusForbidden, "this request needs a client certificate (--http-tls-client-ca)")
	default:
		return refused(http.StatusForbidden, r.Method+" "+r.URL.Path+" requires the admin socket, which weir "+
			"without --server uses on the same machine, a token (--http-token-file) or a client certificate "+
			"(--http-tls-client-ca)")
	}
}

func (h *handler) hasCertificate(r *http.Request) bool {
	return h.HTTPTLSClientCA != "" && r.TLS != nil && len(r.TLS.VerifiedChains) > 0
}

// tokenLines is the minimum interval between two log lines about an unreadable token. Every request can cause a line.
const tokenLines = 10 * time.Second

func (h *handler) checkToken(r *http.Request) error {
	token, err := h.Token()
	if err != nil {
		h.tokenLine.Log(r.Context(), h.Log, slog.LevelError, "the file of --http-token-file cannot be read",
			slog.String("error", err.Error()))
		return refused(http.StatusServiceUnavailable, "the token cannot be read, see the log of the rate limit service")
	}
	sent, isToken := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !isToken || subtle.ConstantTimeCompare([]byte(sent), []byte(token)) != 1 {
		if isToken {
			h.wrongTokens.Add(1)
			h.wrongLine.Log(r.Context(), h.Log, slog.LevelWarn, "a request with a wrong token was refused",
				slog.String("addr", r.RemoteAddr))
		}
		return &statusError{
			http.StatusUnauthorized, "this request needs a token: Authorization: Bearer ... (--http-token-file)",
			http.Header{"Www-Authenticate": {"Bearer"}},
		}
	}
	return nil
}

// seesValues reports whether the request may see the values of keys, which come from clients and may be secrets.
func (h *handler) seesValues(r *http.Request) bool {
	if r.Context().Value(onSocket{}) == nil && !h.hasCertificate(r) && r.Header.Get("Authorization") == "" {
		return false // without reading the token
	}
	return h.authorize(r) == nil
}

// audit logs a change, its author and its result. It does not log values of requests: a counter's key contains such
// values, so it logs the key's hash.
func (h *handler) audit(r *http.Request, action string, err error, attrs ...slog.Attr) {
	result, level := "ok", slog.LevelInfo
	if err != nil {
		result, level = "failed", slog.LevelWarn
		attrs = append(attrs, slog.String("error", withoutValues(err)))
	}
	fields := []slog.Attr{
		slog.String("action", action), slog.String("result", result), slog.String("client", h.client(r)),
		slog.String("addr", r.RemoteAddr),
	}
	h.Log.LogAttrs(r.Context(), level, "audit", append(fields, attrs...)...)
}

// withoutValues returns an error's text without values of requests.
func withoutValues(err error) string {
	switch {
	case errors.Is(err, errNotFound):
		return "not found"
	case isInvalid(err):
		return "refused as invalid"
	default:
		return err.Error()
	}
}

// client returns the sender of the request: "socket", the name in a verified certificate, or "token".
func (h *handler) client(r *http.Request) string {
	switch {
	case r.Context().Value(onSocket{}) != nil:
		return "socket"
	case !h.hasCertificate(r):
		return "token" // authorize has refused requests without a token
	}
	cert := r.TLS.VerifiedChains[0][0]
	if len(cert.URIs) > 0 {
		return cert.URIs[0].String()
	}
	if len(cert.DNSNames) > 0 {
		return cert.DNSNames[0]
	}
	return cert.Subject.String()
}
