package store

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Forms are the forms of a store's URL, for messages.
const Forms = "redis://[user:password@]host:port/db, unix://[user:password@]/path?db=0, " +
	"redis+sentinel://[user:password@]host:port,host:port/master/db or " +
	"redis+cluster://[user:password@]host:port,host:port; rediss instead of redis for TLS; valkey is the same as redis"

// deployment is the kind of deployment of the servers behind a URL.
type deployment int

const (
	server deployment = iota
	socket
	sentinel
	cluster
)

// schemes maps the schemes of URLs. An s after redis means TLS.
var schemes = map[string]deployment{
	"redis": server, "unix": socket, "redis+sentinel": sentinel, "redis+cluster": cluster,
}

// address is a parsed URL of a store.
type address struct {
	deployment  deployment
	client      redis.UniversalOptions // hosts and ports or path of a socket, sizes and timeouts
	credentials *credentials
	tls         bool
	tlsFiles    tlsFiles
	keyPrefix   string
	timeout     time.Duration
	proxy       bool // the servers are behind a proxy
}

// CheckURL returns an error if a store's URL is invalid, with the valid forms. It quotes no value of the URL, because a
// password may be in the wrong place.
func CheckURL(raw string) error {
	_, err := parseURL(raw)
	return err
}

// Proxied reports whether the URL has proxy=true.
func Proxied(raw string) bool {
	a, err := parseURL(raw)
	return err == nil && a.proxy
}

// parseURL parses a URL. It returns the errors of CheckURL.
func parseURL(raw string) (*address, error) {
	a, err := readURL(raw)
	if err != nil {
		return nil, fmt.Errorf("redis store %s: %w; write %s", Redact(raw), err, Forms)
	}
	return a, nil
}

func readURL(raw string) (*address, error) {
	scheme, rest, _ := strings.Cut(raw, "://")
	scheme = strings.Replace(scheme, "valkey", "redis", 1)
	a := &address{tls: strings.HasPrefix(scheme, "rediss"), credentials: newCredentials()}
	if a.tls {
		scheme = "redis" + strings.TrimPrefix(scheme, "rediss")
	}
	var known bool
	if a.deployment, known = schemes[scheme]; !known {
		return nil, errors.New("the scheme must be redis or valkey, rediss or valkeys for TLS, one of these with " +
			"+sentinel or +cluster, or unix")
	}
	authority, tail := splitAuthority(rest)
	if strings.Contains(tail, "@") {
		return nil, errors.New("there is an @ after the host; write special characters of a password as %XX")
	}
	if strings.Contains(tail, "#") {
		return nil, errors.New("there is a #; write it as %23")
	}
	if err := a.readAuthority(authority); err != nil {
		return nil, err
	}
	where, query, _ := strings.Cut(tail, "?")
	if err := a.readPath(where); err != nil {
		return nil, err
	}
	return a, a.readQuery(query)
}

// splitAuthority splits a URL, without its scheme, before the path. tail begins with the path, the options or a #.
func splitAuthority(rest string) (authority, tail string) {
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		return rest[:i], rest[i:]
	}
	return rest, ""
}

// readAuthority parses user:password@host:port,host:port.
func (a *address) readAuthority(text string) error {
	if i := strings.LastIndexByte(text, '@'); i >= 0 {
		user, password, _ := strings.Cut(text[:i], ":")
		var err1, err2 error
		a.credentials.user, err1 = url.PathUnescape(user)
		a.credentials.password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil || strings.Contains(text[:i], " ") {
			return errors.New("user or password have special characters; write them as %XX")
		}
		text = text[i+1:]
	}
	if a.deployment == socket {
		if text != "" {
			return errors.New("the path of a socket must begin with a slash: unix:///path")
		}
		return nil
	}
	for host := range strings.SplitSeq(text, ",") {
		full, err := a.withPort(host)
		if err != nil {
			return err
		}
		a.client.Addrs = append(a.client.Addrs, full)
	}
	if a.deployment == server && len(a.client.Addrs) > 1 {
		return errors.New("several hosts need redis+sentinel:// or redis+cluster://")
	}
	return nil
}

// withPort adds the default port to a host without a port.
func (a *address) withPort(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), "6379"
		if a.deployment == sentinel {
			port = "26379"
		}
		if strings.Contains(host, ":") && !strings.HasPrefix(text, "[") {
			return "", errors.New("a host has more than one colon; write an address of IPv6 in brackets, " +
				"and a password's special characters as %XX")
		}
	}
	if host == "" {
		return "", errors.New("the host is missing")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("a port must be a number from 1 to 65535; write special characters of a password as %XX")
	}
	return net.JoinHostPort(host, port), nil
}

// readPath parses the path of a socket, the name of a master and the database.
func (a *address) readPath(text string) error {
	where, err := url.PathUnescape(text)
	if err != nil {
		return errors.New("the path has a % that is not followed by two hexadecimal digits; write it as %25")
	}
	db := strings.Trim(where, "/")
	switch a.deployment {
	case socket:
		if !path.IsAbs(where) {
			return errors.New("the path of the socket is missing")
		}
		a.client.Addrs, db = []string{where}, ""
	case sentinel:
		if a.client.MasterName, db, _ = strings.Cut(db, "/"); a.client.MasterName == "" {
			return errors.New("the name of the master is missing after the sentinels")
		}
	default:
	}
	return a.readDB(db)
}

func (a *address) readDB(text string) error {
	if text == "" {
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return errors.New("the database must be a number")
	}
	if a.deployment == cluster && n != 0 {
		return errors.New("a cluster has database 0 only")
	}
	a.client.DB = int(n)
	return nil
}

func (a *address) readQuery(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the options cannot be read; write them as ?name=value&name=value, " +
			"and special characters as %XX")
	}
	c, files := &a.client, &a.tlsFiles
	options := map[string]any{
		"key_prefix": &a.keyPrefix, "proxy": &a.proxy,
		"username_file": &a.credentials.usernameFile, "password_file": &a.credentials.passwordFile,
		"password_command":  &a.credentials.command,
		"sentinel_username": &c.SentinelUsername, "sentinel_password": &c.SentinelPassword,
		"tls_ca": &files.ca, "tls_cert": &files.cert, "tls_key": &files.key, "tls_server_name": &files.serverName,
		"tls_skip_hostname": &files.skipHostname,
		"timeout":           &a.timeout, "dial_timeout": &c.DialTimeout,
		"conn_max_idle_time": &c.ConnMaxIdleTime, "conn_max_lifetime": &c.ConnMaxLifetime,
		"pool_size": &c.PoolSize, "min_idle_conns": &c.MinIdleConns,
	}
	if a.deployment == socket {
		options["db"] = a.readDB
	}
	for name, given := range values {
		if options[name] == nil { // the name may be a part of a secret
			return fmt.Errorf("an option is not known; write & in a value as %%26, and use %s",
				strings.Join(slices.Sorted(maps.Keys(options)), ", "))
		}
		value := given[len(given)-1]
		if strings.TrimSpace(value) == "" {
			return fmt.Errorf("option %s is empty; write %s=VALUE, or remove the option", name, name)
		}
		if err := setOption(options[name], name, value); err != nil {
			return err
		}
	}
	return a.checkOptions(values)
}

func setOption(option any, name, value string) (err error) {
	switch to := option.(type) {
	case *string:
		*to = value
	case *[]string:
		*to = strings.Fields(value)
	case *time.Duration:
		if *to, err = time.ParseDuration(value); err != nil || *to <= 0 {
			return fmt.Errorf("option %s must be a time such as 20ms", name)
		}
	case *int:
		if *to, err = strconv.Atoi(value); err != nil || *to < 1 || *to > 10_000 {
			return fmt.Errorf("option %s must be a number from 1 to 10000", name)
		}
	case *bool:
		if *to, err = strconv.ParseBool(value); err != nil {
			return fmt.Errorf("option %s must be true or false", name)
		}
	case func(string) error:
		return to(value)
	}
	return nil
}

// checkOptions returns an error if an option does not fit the scheme or another option.
func (a *address) checkOptions(values url.Values) error {
	for name := range values {
		if strings.HasPrefix(name, "tls_") && !a.tls {
			return fmt.Errorf("option %s needs TLS; write rediss instead of redis", name)
		}
		if strings.HasPrefix(name, "sentinel_") && a.deployment != sentinel {
			return fmt.Errorf("option %s needs redis+sentinel://", name)
		}
	}
	if a.timeout != 0 && (a.timeout < time.Millisecond || a.timeout > 10*time.Second) {
		return errors.New("option timeout must be between 1ms and 10s")
	}
	if (a.tlsFiles.cert == "") != (a.tlsFiles.key == "") {
		return errors.New("tls_cert and tls_key need each other; give both")
	}
	if a.proxy && (a.deployment == cluster || a.deployment == sentinel) {
		return errors.New("option proxy cannot be used with redis+cluster:// or redis+sentinel://, because Weir connects " +
			"to those servers directly; remove proxy=true, or write redis:// with the proxy's address")
	}
	switch c := a.credentials; {
	case c.password != "" && (c.passwordFile != "" || len(c.command) > 0), c.passwordFile != "" && len(c.command) > 0:
		return errors.New("there are several passwords; keep one of password, password_file and password_command")
	case c.user != "" && c.usernameFile != "":
		return errors.New("there is a user and a username_file; remove one of the two")
	}
	return nil
}

// Redact returns a store's URL without user, password and options, for logs. Of an invalid URL it returns the scheme,
// because any other part may be a password.
func Redact(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return "(not a URL)"
	}
	if _, err := readURL(raw); err != nil {
		return scheme + "://..."
	}
	authority, tail := splitAuthority(rest)
	where, _, _ := strings.Cut(tail, "?")
	return scheme + "://" + authority[strings.LastIndexByte(authority, '@')+1:] + where
}
