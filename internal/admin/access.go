package admin

import (
	"crypto/subtle"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/boosts"
)

// protect checks every request: does it name this process as its host, and, where it changes state or takes a profile,
// may it? docs/adr/0042-who-may-change-state.md says who may.
func (h *handler) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.mayAsk(r); err != nil {
			writeError(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// mayAsk says why the request is refused; nil if it is not.
func (h *handler) mayAsk(r *http.Request) error {
	if h.asksForDecision(r) {
		return nil
	}
	if err := h.names.check(r); err != nil {
		return err
	}
	path := strings.TrimPrefix(r.URL.Path, api)
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	if reads && !strings.HasPrefix(path, debug) && path != jsonPath {
		return nil
	}
	return h.authorize(r)
}

// authorize says why the request may not change state, nor see the values of keys; nil if it may.
func (h *handler) authorize(r *http.Request) error {
	switch {
	case h.ClientCerts && r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
		return nil
	case h.Token != nil:
		return h.checkToken(r)
	case h.ClientCerts:
		return refused(http.StatusForbidden, "a client certificate is needed (--http-tls-client-ca)")
	case h.Open || isLocal(r):
		return nil
	default:
		return refused(http.StatusForbidden, r.Method+" "+r.URL.Path+" is only for this machine, by localhost or a Unix "+
			"socket, until serve has a token (--http-token-file) or authorities for client certificates "+
			"(--http-tls-client-ca); --http-open lets everybody")
	}
}

// tokenLines is the pause between two lines about a token that cannot be read: every request can cause one.
const tokenLines = 10 * time.Second

func (h *handler) checkToken(r *http.Request) error {
	token, err := h.Token()
	if err != nil {
		if skipped, ok := h.tokenLine.Allow(time.Now()); ok {
			h.Log.LogAttrs(r.Context(), slog.LevelError, "the token of HTTP requests cannot be read",
				slog.String("error", err.Error()), slog.Uint64("not_logged_before", skipped))
		}
		return refused(http.StatusServiceUnavailable, "the token cannot be read, see the log of the rate limit service")
	}
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token)) != 1 {
		return &statusError{
			http.StatusUnauthorized, "a token is needed: Authorization: Bearer ... (--http-token-file)",
			http.Header{"Www-Authenticate": {"Bearer"}},
		}
	}
	return nil
}

// seesValues says whether the request may see the values of keys, which clients have sent and may be secrets.
func (h *handler) seesValues(r *http.Request) bool {
	if h.Token != nil && r.Header.Get("Authorization") == "" && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0) {
		return false // without reading the token
	}
	return h.authorize(r) == nil
}

// isLocal says whether the request was sent on this machine, to this machine. What a proxy passes on was not, and
// neither was what a web page sends to a name that its owner has turned to 127.0.0.1.
func isLocal(r *http.Request) bool {
	for _, header := range proxyHeaders {
		if r.Header.Get(header) != "" {
			return false
		}
	}
	host := hostname(r.Host)
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		if addr.Network() == "unix" {
			return isLoopback(host)
		}
		// The sidecar of a service mesh sends what comes from elsewhere with a loopback address as its source (Istio:
		// 127.0.0.6), but to the address of the pod.
		if to, err := netip.ParseAddrPort(addr.String()); err != nil || !to.Addr().Unmap().IsLoopback() {
			return false
		}
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && from.Addr().Unmap().IsLoopback() && isLoopback(host)
}

// proxyHeaders are what proxies add: at least one of them, whichever the proxy. Envoy always adds X-Forwarded-Proto.
var proxyHeaders = []string{
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Client-Cert", "X-Real-Ip", "Via",
}

// hostname is a Host header without its port, in lower case.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// isLoopback says whether a host is always this machine.
func isLoopback(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().IsLoopback()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// openPaths show nothing that a web page could use, and are asked by probes and Prometheus under all kinds of names.
var openPaths = []string{"/healthz", "/readyz", "/metrics", "/version", "/healthcheck", "/stats"}

// privateNames end the names that nobody on the internet owns.
var privateNames = []string{".localhost", ".local", ".internal", ".svc", ".cluster.local"}

// hostNames are the names, in lower case, by which a process may be asked beside addresses and privateNames.
type hostNames struct {
	own   string   // the machine's
	hosts []string // as Options.Hosts
}

func newHostNames(hosts []string) hostNames {
	own, _ := os.Hostname() // without one, no request can name it
	return hostNames{own: strings.ToLower(own), hosts: hosts}
}

// protect checks every request.
func (n hostNames) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := n.check(r); err != nil {
			writeError(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// check refuses names that somebody else may own: a web page of evil.example that has its name turned to the
// address of this process could otherwise ask it through the browser of an operator (DNS rebinding).
func (n hostNames) check(r *http.Request) error {
	if slices.Contains(openPaths, strings.TrimPrefix(r.URL.Path, api)) {
		return nil
	}
	host := hostname(r.Host)
	if _, err := netip.ParseAddr(host); err == nil || !strings.Contains(host, ".") || host == n.own {
		return nil
	}
	ends := func(end string) bool { return strings.HasSuffix(host, end) }
	if slices.ContainsFunc(privateNames, ends) {
		return nil
	}
	for _, known := range n.hosts {
		known = strings.ToLower(known)
		if known == "*" || known == host || strings.HasPrefix(known, ".") && ends(known) {
			return nil
		}
	}
	return refused(http.StatusForbidden, "the Host header names "+shorten(host)+
		", which may be anybody's; if it is this process, say so by --http-hosts")
}

// audit logs who changed what, and what became of it. Values of requests, which counters' keys have, are not logged: a
// hash of the key is.
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

// withoutValues is an error for the log.
func withoutValues(err error) string {
	switch {
	case errors.Is(err, boosts.ErrNotFound):
		return "not found"
	case isInvalid(err):
		return "refused as invalid"
	default:
		return err.Error()
	}
}

// client is who asks: the name in a verified certificate, else that the token was shown, else "local" for somebody on
// this machine, or "anyone".
func (h *handler) client(r *http.Request) string {
	switch {
	case r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
		cert := r.TLS.VerifiedChains[0][0]
		if len(cert.URIs) > 0 {
			return cert.URIs[0].String()
		}
		if len(cert.DNSNames) > 0 {
			return cert.DNSNames[0]
		}
		return cert.Subject.String()
	case h.Token != nil: // without it nobody gets here
		return "token"
	case isLocal(r):
		return "local"
	default:
		return "anyone"
	}
}
