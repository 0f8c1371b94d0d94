package store

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// authConn authenticates its connection again after its credentials have changed. It sends AUTH in one write with the
// next command and drops the reply to AUTH, so no request waits, and no connection is replaced. If Redis refuses the
// credentials, the connection keeps its user. go-redis's StreamingCredentialsProvider rejects connections that were
// idle during the change, never frees closed subscriptions, and panics with sentinels.
type authConn struct {
	net.Conn

	from   *credentials
	used   *login // last credentials that were sent
	begins bool   // whether the next write begins a command
	awaits bool   // whether the next reply is that to AUTH
	reply  []byte // what has been read of that reply
}

// withoutAuth are commands before which AUTH is not sent: they authenticate themselves, go to sentinels, or are sent
// on the connection of a subscription, which allows no AUTH.
var withoutAuth = []string{"hello", "auth", "sentinel", "ping", "subscribe", "unsubscribe", "psubscribe"}

// SetWriteDeadline implements net.Conn. go-redis calls it before each command.
func (c *authConn) SetWriteDeadline(t time.Time) error {
	c.begins = true
	return c.Conn.SetWriteDeadline(t)
}

func (c *authConn) Write(p []byte) (int, error) {
	begins, next := c.begins, c.from.current.Load()
	c.begins = false
	if !begins || next == c.used || slices.Contains(withoutAuth, commandName(p)) {
		return c.Conn.Write(p)
	}
	c.used, c.awaits = next, true
	user := cmp.Or(next.Username, "default")
	auth := fmt.Appendf(nil, "*3\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(user), user, len(next.Password),
		next.Password)
	n, err := c.Conn.Write(append(auth, p...))
	return max(0, n-len(auth)), err
}

func (c *authConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if !c.awaits || n == 0 {
			return n, err
		}
		line, rest, ended := bytes.Cut(p[:n], []byte("\n"))
		c.reply = append(c.reply, line...)
		if ended {
			c.from.replied(string(c.reply))
			c.awaits, c.reply = false, nil
		}
		if n = copy(p, rest); n > 0 || err != nil {
			return n, err
		}
	}
}

// replied handles a reply to AUTH.
func (c *credentials) replied(text string) {
	if why, refused := strings.CutPrefix(strings.TrimSpace(text), "-"); refused {
		select {
		case c.refused <- why:
		default: // another refusal waits for run
		}
	}
}
