package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/words"
)

// remoteFlags are the flags of a command that calls a running process.
type remoteFlags struct {
	To     adminapi.Options `embed:"" group:"server"`
	Output outputFlags      `embed:""`
}

// ask calls do with a client of the process, and prints the response as JSON or with show.
func ask[T any](f *remoteFlags, io streams, do func(*adminapi.Client, *T) error, show func(streams, *T)) error {
	client, err := connect(f.To)
	if err != nil {
		return err
	}
	defer client.Close()
	var answer T
	if err := do(client, &answer); err != nil {
		return err
	}
	return f.Output.print(io, answer, func() { show(io, &answer) })
}

// aligned returns a function that prints a name and its value in two columns.
func aligned(w io.Writer, indent string) func(name, format string, args ...any) {
	return func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s%-10s %s\n", indent, name, words.Line(fmt.Sprintf(format, args...)))
	}
}

// connect returns a client of the process. Its error is a usage error, because it does not connect yet.
func connect(o adminapi.Options) (*adminapi.Client, error) {
	socket := ownSocket(&o)
	if socket != "" {
		o.TokenFile = "" // the socket needs no token, and root's token must not reach a server of another user
	}
	o.Server = cmp.Or(o.Server, socket)
	c, err := adminapi.New(o)
	if err != nil {
		return nil, usage(err)
	}
	return c, nil
}

// ownSocket returns the admin socket of a process on this machine, according to serve's environment variables. It
// returns "" if a server or TLS flags are given, or if no process listens on the socket.
func ownSocket(o *adminapi.Options) string {
	if o.Server != "" {
		return ""
	}
	flag, isSet := os.LookupEnv("WEIR_ADMIN_SOCKET")
	if !isSet {
		flag = adminapi.DefaultSocket
	}
	socket := adminapi.Socket(flag, cmp.Or(os.Getenv("WEIR_HTTP_ADDR"), ":8080"))
	if socket == "" || o.CA+o.Cert+o.Key != "" || !adminapi.ListensOn(socket) {
		return ""
	}
	return "unix:" + socket
}
