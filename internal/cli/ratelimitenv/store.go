package ratelimitenv

import (
	"maps"
	"net/url"
	"strings"
	"time"
)

// passwordFile and placeholder stand for secrets in what is shown.
const (
	passwordFile = "/etc/weir/redis-password" //nolint:gosec // a path
	placeholder  = "SECRET"
)

func (r *reader) store() {
	switch backend := r.get("BACKEND_TYPE"); backend {
	case "redis":
	case "memcache":
		r.fail("BACKEND_TYPE", "Weir keeps no counters in memcached; write redis, and a Redis in REDIS_URL")
		return
	default:
		r.fail("BACKEND_TYPE", "must be redis, got %q", backend)
		return
	}
	r.redis("store", "REDIS_", nil)
	timeout := "0"
	if r.isSet("REDIS_TIMEOUT") {
		timeout = r.boundedTimeout("REDIS_TIMEOUT")
	}
	r.flag("store-timeout", timeout, "REDIS_TIMEOUT")
	if r.isSet("CACHE_KEY_PREFIX") {
		r.flag("store-key-prefix", "weir:"+r.get("CACHE_KEY_PREFIX"), "CACHE_KEY_PREFIX")
	}
	if !r.is("REDIS_PERSECOND") {
		return
	}
	options := url.Values{}
	if r.isSet("REDIS_PERSECOND_TIMEOUT") && r.time("REDIS_PERSECOND_TIMEOUT") > 0 {
		options.Set("timeout", r.boundedTimeout("REDIS_PERSECOND_TIMEOUT"))
	}
	r.redis("per-second-store", "REDIS_PERSECOND_", options)
}

// boundedTimeout is a time that a store may have.
func (r *reader) boundedTimeout(name string) string {
	given := r.time(name)
	if given == 0 {
		return "0"
	}
	timeout := max(time.Millisecond, min(given, 10*time.Second))
	if timeout != given {
		r.remark(name, "is %s here: the least is 1ms, the most 10s", timeout)
	}
	return timeout.String()
}

// redis adds a flag with the URL of a Redis, of which the names of the variables begin with prefix.
func (r *reader) redis(flag, prefix string, options url.Values) {
	if options == nil {
		options = url.Values{}
	}
	a := r.address(prefix)
	if a == nil {
		return
	}
	from := []string{prefix + "URL", prefix + "SOCKET_TYPE", prefix + "TYPE", prefix + "AUTH", prefix + "TLS"}
	if a.tls {
		from = append(from, r.certificates(options)...)
	}
	shown, shownOptions := *a, maps.Clone(options)
	if a.password != "" {
		shown.password = ""
		if a.user != "" {
			shown.user = "USER" // of REDIS_AUTH, it may be the first part of a password
		}
		shownOptions.Set("password_file", passwordFile)
		r.keepSecret(prefix+"AUTH or "+prefix+"URL", flag, ", with the whole URL; or write the password into a file that "+
			"password_file names")
	}
	if strings.EqualFold(r.get(prefix+"TYPE"), "sentinel") && r.isSet(prefix+"SENTINEL_AUTH") {
		user, password := userAndPassword(r.get(prefix + "SENTINEL_AUTH"))
		options.Set("sentinel_password", password)
		shownOptions.Set("sentinel_password", placeholder)
		if user != "" {
			options.Set("sentinel_username", user)
			shownOptions.Set("sentinel_username", placeholder)
		}
		from = append(from, prefix+"SENTINEL_AUTH")
		r.keepSecret(prefix+"SENTINEL_AUTH", flag, ", with the whole URL")
	}
	r.secret(flag, a.url(options), shown.url(shownOptions), from...)
}

// certificates adds the options of TLS, which are those of REDIS_ for both servers, and returns their variables.
func (r *reader) certificates(options url.Values) (from []string) {
	for _, v := range [][2]string{
		{"tls_ca", "REDIS_TLS_CACERT"}, {"tls_cert", "REDIS_TLS_CLIENT_CERT"}, {"tls_key", "REDIS_TLS_CLIENT_KEY"},
	} {
		if r.isSet(v[1]) {
			options.Set(v[0], r.get(v[1]))
			from = append(from, v[1])
		}
	}
	if r.is("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") {
		options.Set("tls_skip_hostname", "true")
		from = append(from, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION")
	}
	return from
}

// address is a store's URL in parts.
type address struct {
	scheme         string // without the s of TLS
	user, password string
	hosts          string
	path           string
	tls            bool
}

func (a *address) url(options url.Values) string {
	scheme := a.scheme
	if a.tls {
		scheme = strings.Replace(scheme, "redis", "rediss", 1)
	}
	text := scheme + "://"
	switch {
	case a.password != "":
		text += url.UserPassword(a.user, a.password).String() + "@"
	case a.user != "":
		text += url.User(a.user).String() + "@"
	}
	text += a.hosts + a.path
	if len(options) > 0 {
		text += "?" + strings.ReplaceAll(options.Encode(), "%2F", "/")
	}
	return text
}

// userAndPassword splits the value of REDIS_AUTH: password, or user:password.
func userAndPassword(auth string) (user, password string) {
	if user, password, ok := strings.Cut(auth, ":"); ok {
		return user, password
	}
	return "", auth
}

// address reads where a Redis is. It is nil after an error.
func (r *reader) address(prefix string) *address {
	a := &address{scheme: "redis", tls: r.is(prefix + "TLS")}
	a.user, a.password = userAndPassword(r.get(prefix + "AUTH"))
	where := r.get(prefix + "URL")
	socket := r.get(prefix + "SOCKET_TYPE")
	switch socket {
	case "tcp", "tcp4", "tcp6", "unix":
	default:
		r.fail(prefix+"SOCKET_TYPE", "must be tcp or unix, got %q", socket)
		return nil
	}
	switch kind := r.get(prefix + "TYPE"); strings.ToLower(kind) {
	case "single":
		if socket == "unix" && !strings.Contains(where, "://") {
			return r.unixSocket(a, prefix, where)
		}
	case "sentinel":
		master, hosts, ok := strings.Cut(where, ",")
		if !ok {
			r.fail(prefix+"URL", "must be MASTER,HOST:PORT,HOST:PORT with %sTYPE=SENTINEL", prefix)
			return nil
		}
		a.scheme, where, a.path = "redis+sentinel", hosts, "/"+url.PathEscape(master)
	case "cluster":
		a.scheme = "redis+cluster"
	default:
		r.fail(prefix+"TYPE", "must be SINGLE, SENTINEL or CLUSTER, got %q", kind)
		return nil
	}
	return r.hosts(a, prefix, where)
}

func (r *reader) unixSocket(a *address, prefix, path string) *address {
	if a.tls {
		r.fail(prefix+"TLS", "there is no TLS on a Unix socket; set %sSOCKET_TYPE=tcp for a server elsewhere", prefix)
		return nil
	}
	if !strings.HasPrefix(path, "/") {
		r.fail(prefix+"URL", "must be a path that begins with / because %sSOCKET_TYPE is unix; set that to tcp for HOST:PORT",
			prefix)
		return nil
	}
	a.scheme, a.path = "unix", (&url.URL{Path: path}).EscapedPath()
	return a
}

// hosts reads HOST:PORT,HOST:PORT, each of which may be a URL.
func (r *reader) hosts(a *address, prefix, where string) *address {
	var hosts []string
	for host := range strings.SplitSeq(where, ",") {
		host = strings.TrimSpace(host)
		if !strings.Contains(host, "://") {
			if strings.Contains(host, "@") {
				r.fail(prefix+"URL", "a HOST:PORT has no @; write a password into %sAUTH, or "+
					"redis://[USER:PASSWORD@]HOST:PORT", prefix)
				return nil
			}
			hosts = append(hosts, host)
			continue
		}
		u, err := url.Parse(host)
		if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Host == "" {
			r.fail(prefix+"URL", "must be HOST:PORT or redis://[USER:PASSWORD@]HOST:PORT[/DB], with special characters of a "+
				"password as %%XX")
			return nil
		}
		a.tls = a.tls || u.Scheme == "rediss"
		if u.User != nil {
			a.user = u.User.Username()
			a.password, _ = u.User.Password()
		}
		db := strings.Trim(u.Path, "/")
		for option, values := range u.Query() {
			if option != "db" {
				r.fail(prefix+"URL", "the option %q behind ? is not known", option)
				return nil
			}
			db = values[0]
		}
		if db != "" && a.scheme != "redis+cluster" {
			a.path = strings.TrimSuffix(a.path, "/") + "/" + db
		}
		hosts = append(hosts, u.Host)
	}
	a.hosts = strings.Join(hosts, ",")
	return a
}
