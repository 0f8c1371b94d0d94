package admin

import (
	"context"
	"crypto/tls"
	"log/slog"
	"regexp"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/listen"
)

// Config are the flags of the HTTP addresses.
type Config struct {
	HTTPAddr    string `group:"listen" name:"http-addr" env:"WEIR_HTTP_ADDR" default:":8080" help:"Address of health, rules and metrics (HTTP): host:port, :port or unix:PATH. Empty: none."`
	Pprof       bool   `group:"listen" env:"WEIR_PPROF" help:"Serve profiles for go tool pprof at /debug/pprof/ of the HTTP address."`
	AdminSocket string `group:"listen" env:"WEIR_ADMIN_SOCKET" default:"auto" placeholder:"PATH|@NAME" help:"Unix socket through which weir commands of the same user, or root, change state without a token: a file, or @NAME for an abstract socket of Linux. auto is @weir-PORT with the port of --http-addr (outside Linux weir-PORT.sock in the temporary folder), or PATH.admin for unix:PATH. Empty: none."`
	DebugAddr   string `group:"listen" env:"WEIR_DEBUG_ADDR" placeholder:"ADDR" help:"Serve the debug pages of envoyproxy/ratelimit at this address: /rlconfig, /stats."`

	HealthcheckNeedsRules bool `group:"listen" env:"WEIR_HEALTHCHECK_NEEDS_RULES" help:"GET /healthcheck returns 500 while there are no rules."`
	HealthcheckNeedsLoad  bool `group:"listen" env:"WEIR_HEALTHCHECK_NEEDS_LOAD" help:"GET /healthcheck returns 500 until a load of rules succeeds; an empty set of rules suffices."`
	HTTPJSON              bool `group:"listen" name:"http-json" env:"WEIR_HTTP_JSON" help:"Decide JSON requests at /json of the HTTP address, as envoyproxy/ratelimit does. All clients may send them; if the gRPC address requires client certificates, only clients that may change state."`

	HTTPTLSCert     string `group:"tls" name:"http-tls-cert" env:"WEIR_HTTP_TLS_CERT" placeholder:"FILE" help:"Certificate of the HTTP address, in PEM; enables TLS."`
	HTTPTLSKey      string `group:"tls" name:"http-tls-key" env:"WEIR_HTTP_TLS_KEY" placeholder:"FILE" help:"Private key of --http-tls-cert, in PEM."`
	HTTPTLSClientCA string `group:"tls" name:"http-tls-client-ca" env:"WEIR_HTTP_TLS_CLIENT_CA" placeholder:"FILE" help:"Certificate authorities, in PEM. To change state and to read profiles or values of keys, a client needs a certificate from one of them, the token or the admin socket."`
	HTTPTokenFile   string `group:"tls" name:"http-token-file" env:"WEIR_HTTP_TOKEN_FILE" placeholder:"FILE" help:"File with a token. To change state and to read profiles or values of keys, a client needs the token (Authorization: Bearer TOKEN), a certificate or the admin socket."`

	MetricsAddr string `group:"metrics" env:"WEIR_METRICS_ADDR" placeholder:"ADDR" help:"Additional address that serves only the metrics: host:port, :port or unix:PATH."`
	MetricsPath string `group:"metrics" env:"WEIR_METRICS_PATH" default:"/metrics" help:"Path of the metrics at --metrics-addr."`
}

// metricsPath matches a path that is not a pattern of http.ServeMux.
var metricsPath = regexp.MustCompile("^/[A-Za-z0-9._~/-]*$")

// Check checks the flags.
func (c *Config) Check(e *flags.Errors) {
	if c.HTTPAddr != "" {
		e.Addr("--http-addr", c.HTTPAddr)
	}
	if c.DebugAddr != "" {
		e.Addr("--debug-addr", c.DebugAddr)
	}
	c.tls(nil).Check(e)
	if c.MetricsAddr != "" {
		e.Addr("--metrics-addr", c.MetricsAddr)
		e.Check(metricsPath.MatchString(c.MetricsPath), "--metrics-path", "must be a path such as /metrics, got %q",
			c.MetricsPath)
	}
}

// tls returns the TLS configuration of --http-addr. Reading requires no certificate. HTTP/2 is off, because its clients
// could send hundreds of concurrent requests per connection.
func (c *Config) tls(log *slog.Logger) *listen.TLS {
	return &listen.TLS{
		Listener: "http", Cert: c.HTTPTLSCert, Key: c.HTTPTLSKey, ClientCA: c.HTTPTLSClientCA,
		Auth: tls.VerifyClientCertIfGiven, Protocols: []string{"http/1.1"}, Log: log,
	}
}

// token reads the token for each request, so that the file can change.
func (c *Config) token() (string, error) {
	return adminapi.ReadToken(context.Background(), "--http-token-file", c.HTTPTokenFile)
}
