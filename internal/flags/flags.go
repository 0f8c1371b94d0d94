// Package flags collects the errors of serve's flags. Each part of the process has a Config with kong's tags, whose
// method Check checks its flags.
package flags

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
)

// Unix is the prefix of an address that is the path of a Unix socket.
const Unix = "unix:"

// Errors are the errors of flags. Each begins with the flag's name. The zero value is ready to use.
type Errors struct {
	errs   []error
	listen map[string]string // flags by address
}

// Join returns all errors as one, or nil if there are none.
func (e *Errors) Join() error { return errors.Join(e.errs...) }

// Add adds an error, which must begin with the flag's name, unless it is nil.
func (e *Errors) Add(err error) { e.errs = append(e.errs, err) }

// Check adds an error about a flag unless ok is true.
func (e *Errors) Check(ok bool, flag, format string, args ...any) {
	if !ok {
		e.Add(fmt.Errorf("%s: "+format, append([]any{flag}, args...)...))
	}
}

// Between checks that a number or a time is within a range.
func Between[T cmp.Ordered](e *Errors, flag string, v, lo, hi T) {
	e.Check(v >= lo && v <= hi, flag, "must be between %v and %v, got %v", lo, hi, v)
}

// headerName matches the names of headers in RFC 9110.
var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}$")

// IsHeader reports whether name is a valid name of a header.
func IsHeader(name string) bool { return headerName.MatchString(name) }

// Header checks the name of a header.
func (e *Errors) Header(flag, name string) {
	e.Check(IsHeader(name), flag, "must be a header name of letters, digits and -, got %q", name)
}

// hostName matches a host name whose last part is not a number, or an IPv6 address with a zone.
var hostName = regexp.MustCompile(`^([\w-]+\.)*\d*[A-Za-z_-][\w-]*\.?$|^[0-9a-fA-F:.]+%\S+$`)

// Addr checks an address to listen on, and that no other flag has it.
func (e *Errors) Addr(flag, addr string) {
	if path, ok := strings.CutPrefix(addr, Unix); ok {
		e.Check(path != "", flag, "must have a path after %s", Unix)
		return
	}
	host, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port) //nolint:noctx // without a server
	}
	isHost := host == "" || net.ParseIP(host) != nil || hostName.MatchString(host)
	e.Check(err == nil && isHost, flag, "must be host:port, :port or unix:PATH, got %q", addr)
	if strings.HasSuffix(addr, ":0") {
		return
	}
	other, isTaken := e.listen[addr]
	e.Check(!isTaken, flag, "is %s, which %s already uses; choose another port", addr, other)
	if e.listen == nil {
		e.listen = map[string]string{}
	}
	e.listen[addr] = flag
}
