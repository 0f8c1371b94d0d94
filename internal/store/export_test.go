package store

// ParseAnswer parses what a password_command prints.
func ParseAnswer(out string) (user, password, expires string, err error) {
	l := &login{Username: "of-the-url"}
	err = l.parse([]byte(out))
	return l.Username, l.Password, l.Expires.UTC().String(), err
}
