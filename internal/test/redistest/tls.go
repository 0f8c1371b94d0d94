package redistest

import (
	"net"
	"strconv"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// StartTLS runs a redis-server that also listens with TLS, with the authority's certificate for 127.0.0.1 and "redis",
// and returns that address. If clients is true, clients need a certificate of that authority.
func StartTLS(tb testing.TB, a *proctest.Authority, clients bool, args ...string) (s *Server, addr string) {
	tb.Helper()
	cert, key := a.Issue("redis", "127.0.0.1", "redis")
	port, needed := strconv.Itoa(proctest.FreePort(tb)), map[bool]string{false: "no", true: "yes"}[clients]
	s = Start(tb, append([]string{
		"--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", a.CA(),
		"--tls-auth-clients", needed,
	}, args...)...)
	return s, net.JoinHostPort("127.0.0.1", port)
}
