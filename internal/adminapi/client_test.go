package adminapi_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// seen is the request that the server received.
type seen struct{ Method, Target, Authorization, Body string }

// echo responds with the request.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_ = json.NewEncoder(w).Encode(seen{r.Method, r.URL.RequestURI(), r.Header.Get("Authorization"), string(body)})
}

func client(t *testing.T, o adminapi.Options) *adminapi.Client {
	t.Helper()
	c, err := adminapi.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAsks(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(echo))
	defer server.Close()
	socket := filepath.Join(t.TempDir(), "http.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	onSocket := &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: time.Second}
	go onSocket.Serve(l)   //nolint:errcheck // ends with Close
	defer onSocket.Close() //nolint:errcheck // ends

	get := func(c *adminapi.Client, into *seen) error {
		return c.Get(t.Context(), "/keys/get", url.Values{"descriptor": {"a=b&c", "d=é"}}, into)
	}
	for name, tc := range map[string]struct {
		o    adminapi.Options
		ask  func(c *adminapi.Client, into *seen) error
		want seen
	}{
		"a URL": {
			adminapi.Options{Server: server.URL},
			get,
			seen{Method: "GET", Target: "/api/v1/keys/get?descriptor=a%3Db%26c&descriptor=d%3D%C3%A9"},
		},
		"host and port": {
			adminapi.Options{Server: strings.TrimPrefix(server.URL, "http://")},
			get,
			seen{Method: "GET", Target: "/api/v1/keys/get?descriptor=a%3Db%26c&descriptor=d%3D%C3%A9"},
		},
		"a path before it": {
			adminapi.Options{Server: server.URL + "/weir/"},
			get,
			seen{Method: "GET", Target: "/weir/api/v1/keys/get?descriptor=a%3Db%26c&descriptor=d%3D%C3%A9"},
		},
		"a socket": {
			adminapi.Options{Server: "unix:" + socket},
			get,
			seen{Method: "GET", Target: "/api/v1/keys/get?descriptor=a%3Db%26c&descriptor=d%3D%C3%A9"},
		},
		"a token and a body": {
			adminapi.Options{Server: server.URL, TokenFile: file(t, "s3cret-s3cret-s3cret\n")},
			func(c *adminapi.Client, into *seen) error {
				return c.Post(t.Context(), "/keys/reset", map[string]string{"key": "k"}, into)
			},
			seen{Method: "POST", Target: "/api/v1/keys/reset", Authorization: "Bearer s3cret-s3cret-s3cret", Body: `{"key":"k"}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got seen
			if err := tc.ask(client(t, tc.o), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("the server saw (-want +got)\n%s", diff)
			}
		})
	}
}

// Certificates of both sides.
func TestTLS(t *testing.T) {
	authority := proctest.NewAuthority(t)
	cert, key := authority.Issue("server", "127.0.0.1")
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(authority.CA())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, "this request needs a client certificate (--http-tls-client-ca)", http.StatusForbidden)
			return
		}
		echo(w, r)
	}))
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{own}, ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs: x509.NewCertPool(),
	}
	server.TLS.ClientCAs.AppendCertsFromPEM(pem)
	server.Config.ErrorLog = nil
	server.StartTLS()
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "https://")

	for name, tc := range map[string]struct {
		o    adminapi.Options
		want string // error
	}{
		"all":            {o: adminapi.Options{CA: authority.CA(), Cert: cert, Key: key}},
		"no authority":   {adminapi.Options{}, "give the authority of the server's certificate with --server-ca"},
		"no certificate": {adminapi.Options{CA: authority.CA()}, "--server-cert and --server-key"},
		"no TLS":         {adminapi.Options{Server: "http://" + host}, "Client sent an HTTP request to an HTTPS server."},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.o.Server == "" {
				tc.o.Server = server.URL
			}
			fails(t, client(t, tc.o).Post(t.Context(), "/keys/reset", nil, &seen{}), tc.want)
		})
	}
}

// fails wants an error that contains want, or none if that is empty.
func fails(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Error(err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("the error is %v, want one with %q", err, want)
	}
}

// Errors of an answer, or of none, say what to do, and never the token.
func TestErrors(t *testing.T) {
	answers := map[string]func(w http.ResponseWriter){
		"/token": func(w http.ResponseWriter) { http.Error(w, "a token is needed", http.StatusUnauthorized) },
		"/json": func(w http.ResponseWriter) {
			w.WriteHeader(422)
			_, _ = io.WriteString(w, `{"error":"factor: must be above 0"}`)
		},
		"/text": func(w http.ResponseWriter) {
			http.Error(w, "the token cannot be read\nmore", http.StatusServiceUnavailable)
		},
		"/here": func(w http.ResponseWriter) {
			w.WriteHeader(403)
			_, _ = io.WriteString(w, `{"error":"requires the admin socket, a token or a client certificate"}`)
		},
		"/empty":     func(w http.ResponseWriter) { w.WriteHeader(500) },
		"/elsewhere": func(w http.ResponseWriter) { w.Header().Set("Location", "http://evil/"); w.WriteHeader(302) },
		"/no-json":   func(w http.ResponseWriter) { _, _ = io.WriteString(w, "hello") },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := answers[strings.TrimPrefix(r.URL.Path, "/api/v1")]
		if answer == nil {
			http.NotFound(w, r)
			return
		}
		answer(w)
	}))
	defer server.Close()
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close() //nolint:errcheck // ends
	token := file(t, "s3cret-s3cret-s3cret")
	plain, withToken := adminapi.Options{Server: server.URL}, adminapi.Options{Server: server.URL, TokenFile: token}

	for name, tc := range map[string]struct {
		o    adminapi.Options
		path string
		want string
	}{
		"no token": {plain, "/token", server.URL + ": GET /token needs a token: give the file that holds it " +
			"with --token-file"},
		"wrong token": {withToken, "/token", server.URL + ": the token in " + token +
			" is not the token in the server's --http-token-file"},
		"json":         {plain, "/json", server.URL + ": factor: must be above 0"},
		"text":         {withToken, "/text", server.URL + ": the token cannot be read"},
		"only there":   {plain, "/here", server.URL + ": requires the admin socket, a token or a client certificate"},
		"nothing":      {plain, "/empty", server.URL + ": the response is 500 Internal Server Error"},
		"elsewhere":    {withToken, "/elsewhere", server.URL + ": the response is 302 Found; is this the --http-addr of Weir?"},
		"no json":      {plain, "/no-json", " is not JSON from Weir"},
		"no such path": {plain, "/top", server.URL + ": 404 page not found; is this the --http-addr of Weir?"},
		"nobody there": {
			adminapi.Options{Server: "127.0.0.1:1"},
			"/",
			"connection refused; is Weir running there, and is this its --http-addr? See --server",
		},
		"no socket": {adminapi.Options{Server: "unix:/nowhere"}, "/", "no response from unix:/nowhere: "},
		"hangs": {
			adminapi.Options{Server: hangs.Addr().String(), Timeout: 50 * time.Millisecond},
			"/",
			"the server did not respond in time; see --timeout",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := client(t, tc.o).Get(t.Context(), tc.path, nil, &seen{})
			fails(t, err, tc.want)
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%v tells the token", err)
			}
		})
	}
	err = client(t, plain).Get(t.Context(), "/json", nil, &seen{})
	if status, ok := errors.AsType[*adminapi.StatusError](err); !ok || status.Status != 422 {
		t.Errorf("%v is no StatusError of 422", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := client(t, plain).Get(gone, "/json", nil, &seen{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
}

func TestOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		o    adminapi.Options
		want string
	}{
		"default":            {adminapi.Options{}, ""},
		"another scheme":     {adminapi.Options{Server: "ftp://host"}, "--server: must be http://host:port"},
		"no host":            {adminapi.Options{Server: "http://:8080"}, "--server: must be http://host:port"},
		"a password":         {adminapi.Options{Server: "http://a:s3cret@host"}, "without user and password"},
		"no URL":             {adminapi.Options{Server: "http://a b:s3cret@host"}, "--server: must be"},
		"no path":            {adminapi.Options{Server: "unix:"}, "--server: write a path after unix:"},
		"authority without":  {adminapi.Options{Server: "host:1", CA: "ca.pem"}, "need https in --server"},
		"no such authority":  {adminapi.Options{Server: "https://host", CA: "/nowhere"}, "--server-ca: stat /nowhere"},
		"no authority in it": {adminapi.Options{Server: "https://host", CA: "client_test.go"}, "has no certificate in PEM"},
		"certificate, no key": {
			adminapi.Options{Server: "https://host", Cert: "a.pem"},
			"--server-cert and --server-key need each other",
		},
		"no such certificate": {
			adminapi.Options{Server: "https://host", Cert: "/nowhere", Key: "/nowhere"},
			"--server-cert, --server-key: stat /nowhere",
		},
		"no token file": {adminapi.Options{TokenFile: "/nowhere"}, "--token-file: stat /nowhere: no such file"},
		"a short token": {adminapi.Options{TokenFile: file(t, "s3cret\n")}, "must hold one line with the token: at least 16"},
		"two lines":     {adminapi.Options{TokenFile: file(t, "s3cret-s3cret-1\ns3cret-s3cret-2\n")}, "must hold one line"},
		"a NUL":         {adminapi.Options{TokenFile: file(t, "s3cret-s3cret-s3cret\x00")}, "must hold one line"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := adminapi.New(tc.o)
			fails(t, err, tc.want)
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%v tells a password", err)
			}
		})
	}
}
