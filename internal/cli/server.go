package cli

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/words"
)

// serverFlags name the running process that a command asks, and hold the caller's credentials.
type serverFlags struct {
	Server     string        `env:"WEIR_SERVER" placeholder:"ADDR" help:"The --http-addr of the process: http://host:port, https://host:port, host:port or unix:PATH. Default: its --admin-socket if this is the same machine and user, or root; else the value of WEIR_HTTP_ADDR, as for serve, else http://127.0.0.1:8080."`
	TokenFile  string        `env:"WEIR_TOKEN_FILE" placeholder:"FILE" help:"File with the token of serve's --http-token-file."`
	ServerCA   string        `name:"server-ca" env:"WEIR_SERVER_CA" placeholder:"FILE" help:"Authorities of the server's certificate, in PEM; the system's by default."`
	ServerCert string        `env:"WEIR_SERVER_CERT" placeholder:"FILE" help:"Client certificate in PEM, for serve's --http-tls-client-ca."`
	ServerKey  string        `env:"WEIR_SERVER_KEY" placeholder:"FILE" help:"Private key of --server-cert, in PEM."`
	Timeout    time.Duration `env:"WEIR_SERVER_TIMEOUT" default:"10s" help:"Longest wait for an answer."`
}

// remoteFlags are of a command that asks a running process and prints the answer.
type remoteFlags struct {
	To     serverFlags `embed:"" group:"server"`
	Output outputFlags `embed:""`
}

// ask calls do with a client of the process, and prints the answer: as JSON, or by show.
func ask[T any](f *remoteFlags, io streams, do func(*adminapi.Client, *T) error, show func(streams, *T)) error {
	client, err := f.To.client()
	if err != nil {
		return err
	}
	defer client.Close()
	var answer T
	if err := do(client, &answer); err != nil {
		return err
	}
	if f.Output.json() {
		return printJSON(io, answer)
	}
	show(io, &answer)
	return nil
}

// aligned returns a function that prints a name and what it is worth, one below the other.
func aligned(w io.Writer, indent string) func(name, format string, args ...any) {
	return func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s%-10s %s\n", indent, name, words.Line(fmt.Sprintf(format, args...)))
	}
}

// client does not connect. An error is of the command line.
func (f *serverFlags) client() (*adminapi.Client, error) {
	socket, tokenFile := f.ownSocket(), f.TokenFile
	if socket != "" {
		tokenFile = "" // the socket needs none, and root may have found that of a stranger, who listened there first
	}
	c, err := adminapi.New(adminapi.Options{
		Server: cmp.Or(f.Server, socket, ownServer()), TokenFile: tokenFile,
		CA: f.ServerCA, Cert: f.ServerCert, Key: f.ServerKey, Timeout: f.Timeout,
	})
	if err != nil {
		return nil, usage(err)
	}
	return c, nil
}

// ownSocket returns the admin socket of a process on this machine, by the variables that say so to serve, too; empty if
// nobody listens on it, or for flags of TLS.
func (f *serverFlags) ownSocket() string {
	if f.Server != "" {
		return ""
	}
	flag, isSet := os.LookupEnv("WEIR_ADMIN_SOCKET")
	if !isSet {
		flag = adminapi.DefaultSocket
	}
	socket := adminapi.Socket(flag, cmp.Or(os.Getenv("WEIR_HTTP_ADDR"), ":8080"))
	if socket == "" || f.ServerCA+f.ServerCert+f.ServerKey != "" || !adminapi.ListensOn(socket) {
		return ""
	}
	return "unix:" + socket
}

// ownServer is where serve listens by the variable that says so, as in its container; empty without it.
func ownServer() string {
	addr := os.Getenv("WEIR_HTTP_ADDR")
	if strings.HasPrefix(addr, "unix:") {
		return addr
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	scheme := "http://"
	if os.Getenv("WEIR_HTTP_TLS_CERT") != "" {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, port)
}
