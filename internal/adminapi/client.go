package adminapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/fileread"
)

// Defaults of Options.
const (
	// DefaultServer is the address of `weir serve` without --http-addr.
	DefaultServer = "http://127.0.0.1:8080"
	// DefaultTimeout bounds a request with its response.
	DefaultTimeout = 10 * time.Second
)

// api is the prefix of every path.
const api = "/api/v1"

// maxAnswer is the maximum size of a response, in bytes.
const maxAnswer = 64 << 20

// Options are the flags for connecting to a process. Zero values are the defaults.
type Options struct {
	// Server may have a path, which is a prefix of every endpoint's path.
	Server string `env:"WEIR_SERVER" placeholder:"ADDR" help:"The --http-addr of the process: http://host:port, https://host:port, host:port or unix:PATH. Default: if the process runs on this machine as the same user, or you are root, its --admin-socket (found by WEIR_ADMIN_SOCKET and WEIR_HTTP_ADDR); else http://127.0.0.1:8080."`
	// TokenFile is read for each request.
	TokenFile string `env:"WEIR_TOKEN_FILE" placeholder:"FILE" help:"File with the token of serve's --http-token-file."`
	CA        string `name:"server-ca" env:"WEIR_SERVER_CA" placeholder:"FILE" help:"Certificate authorities for the server, in PEM; default: the system's."`
	Cert      string `name:"server-cert" env:"WEIR_SERVER_CERT" placeholder:"FILE" help:"Client certificate in PEM, for serve's --http-tls-client-ca."`
	Key       string `name:"server-key" env:"WEIR_SERVER_KEY" placeholder:"FILE" help:"Private key of --server-cert, in PEM."`
	// Timeout bounds a request with its response.
	Timeout time.Duration `env:"WEIR_SERVER_TIMEOUT" default:"10s" help:"Longest wait for a response."`
}

// Client sends requests to one process. It is safe for concurrent use.
type Client struct {
	base      url.URL
	shown     string // the server's name in errors
	tokenFile string
	http      *http.Client
}

// New checks the options, and reads the certificates and the token. It does not connect.
func New(o Options) (*Client, error) {
	c := &Client{shown: cmp.Or(o.Server, DefaultServer), tokenFile: o.TokenFile}
	if _, err := c.token(context.Background()); err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 1,
	}
	if path, ok := strings.CutPrefix(c.shown, "unix:"); ok {
		if path == "" {
			return nil, errors.New("--server: write a path after unix:, such as unix:/run/weir/http.sock")
		}
		c.base = url.URL{Scheme: "http", Host: "localhost"}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
	} else if err := c.parse(); err != nil {
		return nil, err
	}
	if err := o.secure(transport, c.base.Scheme); err != nil {
		return nil, err
	}
	c.http = &http.Client{
		Transport: transport, Timeout: cmp.Or(o.Timeout, DefaultTimeout),
		// A redirect might send the token to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// parse parses a server that is not a Unix socket.
func (c *Client) parse() error {
	text := c.shown
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		u.RawQuery != "" || u.Fragment != "" { // not quoted, because it may have a password
		return errors.New("--server: must be http://host:port, https://host:port, host:port or unix:PATH, without user and " +
			"password (a token goes into a file, --token-file), ? and #")
	}
	c.base, c.shown = *u, u.String()
	return nil
}

// secure reads the TLS files.
func (o *Options) secure(transport *http.Transport, scheme string) error {
	if o.CA == "" && o.Cert == "" && o.Key == "" {
		return nil
	}
	if scheme != "https" {
		return errors.New("--server-ca, --server-cert and --server-key need https in --server")
	}
	if (o.Cert == "") != (o.Key == "") {
		return errors.New("--server-cert and --server-key need each other; give both")
	}
	config, err := fileread.ClientTLS(context.Background(), "--server-", o.CA, o.Cert, o.Key)
	transport.TLSClientConfig = config
	return err
}

// String returns the server's name.
func (c *Client) String() string { return c.shown }

// Close closes the connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// StatusError is a response with a status other than 2xx.
type StatusError struct {
	Status int
	// Msg is the server's error and a hint.
	Msg string
	// Body is the whole response.
	Body   []byte
	server string
}

// Error implements error.
func (e *StatusError) Error() string { return e.server + ": " + e.Msg }

// Get requests path, such as "/explain", with the query, and decodes the JSON of the response into answer.
func (c *Client) Get(ctx context.Context, path string, query url.Values, answer any) error {
	return c.ask(ctx, http.MethodGet, path, query, nil, answer)
}

// Post sends body as JSON, or no body if it is nil, and decodes the JSON of the response into answer.
func (c *Client) Post(ctx context.Context, path string, body, answer any) error {
	return c.ask(ctx, http.MethodPost, path, nil, body, answer)
}

// Text requests path and returns the response for any status.
func (c *Client) Text(ctx context.Context, path string) (status int, text string, err error) {
	res, body, err := c.do(ctx, http.MethodGet, path, nil, nil) //nolint:bodyclose // do closes it
	if err != nil {
		return 0, "", err
	}
	return res.StatusCode, string(body), nil
}

func (c *Client) ask(ctx context.Context, method, path string, query url.Values, body, answer any) error {
	res, text, err := c.do(ctx, method, api+path, query, body) //nolint:bodyclose // do closes it
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return c.refused(res, method+" "+path, text)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s: the response to %s %s is not JSON from Weir (%w); is this Weir's --http-addr?", c, method,
			path, err)
	}
	return nil
}

// do sends a request, reads the whole response and closes its body.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, []byte,
	error,
) {
	to := c.base
	to.Path, to.RawPath = strings.TrimSuffix(c.base.Path, "/")+path, ""
	to.RawQuery = query.Encode()
	r, err := c.request(ctx, method, to.String(), body)
	if err != nil {
		return nil, nil, err
	}
	res, err := c.http.Do(r)
	if err != nil {
		return nil, nil, c.unreachable(err)
	}
	defer res.Body.Close() //nolint:errcheck // nothing was written
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, nil, c.unreachable(err)
	case len(text) > maxAnswer:
		return nil, nil, fmt.Errorf("%s: the response to %s %s has more than %d bytes", c, method, path, maxAnswer)
	}
	return res, text, nil
}

// request returns a request with the body as JSON and the token.
func (c *Client) request(ctx context.Context, method, to string, body any) (*http.Request, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, to, content)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	token, err := c.token(ctx)
	if err != nil {
		return nil, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r, nil
}

// token reads the token, or returns "" without a token file.
func (c *Client) token(ctx context.Context) (string, error) {
	if c.tokenFile == "" {
		return "", nil
	}
	return ReadToken(ctx, "--token-file", c.tokenFile)
}

// MinToken is the minimum length of a token in bytes, because shorter tokens can be guessed.
const MinToken = 16

// ReadToken returns the token in the file that a flag names. Its error names the flag and the file.
func ReadToken(ctx context.Context, flag, file string) (string, error) {
	content, err := fileread.ReadFile(ctx, file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	token := strings.TrimSpace(string(content))
	if len(token) < MinToken || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", fmt.Errorf("%s: %s must hold one line with the token: at least %d ASCII letters, digits or punctuation "+
			"marks without spaces, such as the output of openssl rand -hex 16", flag, file, MinToken)
	}
	return token, nil
}

// unreachable returns the error of a failed request, with a hint.
func (c *Client) unreachable(err error) error {
	if inner := (*url.Error)(nil); errors.As(err, &inner) {
		err = inner.Err // the message has method and URL already
	}
	hint := "is Weir running there, and is this its --http-addr? See --server"
	switch {
	case errors.As(err, new(*tls.CertificateVerificationError)):
		hint = "give the authority of the server's certificate with --server-ca"
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		hint = "the server did not respond in time; see --timeout"
	}
	return fmt.Errorf("no response from %s: %w; %s", c, err, hint)
}

// refused returns the error of a response other than 2xx. Weir sends an Error; other servers may send text.
func (c *Client) refused(res *http.Response, asked string, text []byte) error {
	var answer Error
	_ = json.Unmarshal(text, &answer) // otherwise answer stays empty
	line, _, _ := strings.Cut(strings.TrimSpace(string(text[:min(len(text), 500)])), "\n")
	msg := cmp.Or(answer.Error, line, "the response is "+res.Status)
	switch {
	case res.StatusCode == http.StatusUnauthorized && c.tokenFile == "":
		msg = asked + " needs a token: give the file that holds it with --token-file" + c.orSocket()
	case res.StatusCode == http.StatusUnauthorized:
		msg = "the token in " + c.tokenFile + " is not the token in the server's --http-token-file"
	case res.StatusCode == http.StatusForbidden:
		msg += "; give --token-file, or --server-cert and --server-key" + c.orSocket()
	case answer.Error == "":
		msg += "; is this the --http-addr of Weir?"
	}
	return &StatusError{Status: res.StatusCode, Msg: msg, Body: text, server: c.shown}
}

// orSocket returns a hint about a socket that needs no token, for the end of an error.
func (c *Client) orSocket() string {
	addr := c.base.Host
	if strings.HasPrefix(c.shown, "unix:") {
		addr = c.shown
	}
	if socket := Socket(DefaultSocket, addr); socket != "" {
		return "; or, on the machine of the process and as its user or root, --server unix:" + socket
	}
	return ""
}
