package store

import (
	"context"
	"log/slog"
)

// WatchPasswordFile renews the password in a file until ctx is done. password returns the current one.
func WatchPasswordFile(ctx context.Context, path string, log *slog.Logger) (password func() string) {
	c := newCredentials()
	c.passwordFile = path
	_ = c.start(ctx) // the password is empty
	go c.run(ctx, log)
	return func() string { return c.current.Load().Password }
}

// ParseAnswer parses what a password_command prints.
func ParseAnswer(out string) (user, password, expires string, err error) {
	l := &login{Username: "of-the-url"}
	err = l.parse([]byte(out))
	return l.Username, l.Password, l.Expires.UTC().String(), err
}
