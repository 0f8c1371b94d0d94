package ratelimitenv

import (
	"cmp"
	"maps"
	"net/url"
	"strings"
	"time"
)

// passwordFile and placeholder replace secrets in Setting.Shown.
const (
	passwordFile = "/etc/weir/redis-password" //nolint:gosec // a path
	placeholder  = "SECRET"
)

func (r *reader) store() {
	switch backend := r.get("BACKEND_TYPE"); backend {
	case "redis":
	case "memcache":
		r.fail("BACKEND_TYPE", "Weir does not support memcached; write redis, and the address of a Redis in REDIS_URL")
		return
	default:
		r.fail("BACKEND_TYPE", "must be redis, got %q", backend)
		return
	}
	r.redis("store", "REDIS_", url.Values{})
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

// boundedTimeout returns a timeout within the bounds of --store-timeout.
func (r *reader) boundedTimeout(name string) string {
	given := r.time(name)
	if given == 0 {
		return "0"
	}
	timeout := max(time.Millisecond, min(given, 10*time.Second))
	if timeout != given {
		r.remark(name, "is %s in Weir: the minimum is 1ms, the maximum 10s", timeout)
	}
	return timeout.String()
}

// redis adds a flag with the URL of a Redis from the variables whose names begin with prefix.
func (r *reader) redis(flag, prefix string, options url.Values) {
	u := r.address(prefix)
	if u == nil {
		return
	}
	from := []string{prefix + "URL", prefix + "SOCKET_TYPE", prefix + "TYPE", prefix + "AUTH", prefix + "TLS"}
	if strings.HasPrefix(u.Scheme, "rediss") {
		from = append(from, r.certificates(options)...)
	}
	shown, shownOptions := *u, maps.Clone(options)
	if password, _ := u.User.Password(); password != "" {
		if shown.User = nil; u.User.Username() != "" {
			shown.User = url.User("USER") // in REDIS_AUTH, this may be a part of a password
		}
		shownOptions.Set("password_file", passwordFile)
	}
	if strings.EqualFold(r.get(prefix+"TYPE"), "sentinel") && r.isSet(prefix+"SENTINEL_AUTH") {
		auth := userAndPassword(r.get(prefix + "SENTINEL_AUTH"))
		password, _ := auth.Password()
		options.Set("sentinel_password", password)
		shownOptions.Set("sentinel_password", placeholder)
		if auth.Username() != "" {
			options.Set("sentinel_username", auth.Username())
			shownOptions.Set("sentinel_username", placeholder)
		}
		from = append(from, prefix+"SENTINEL_AUTH")
	}
	r.secret(flag, withOptions(u, options), withOptions(&shown, shownOptions), from...)
}

func withOptions(u *url.URL, options url.Values) string {
	u.RawQuery = strings.ReplaceAll(options.Encode(), "%2F", "/")
	return u.String()
}

// certificates adds the TLS options and returns their variables, which are the same for both Redis servers.
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

// userAndPassword parses REDIS_AUTH: empty, password, or user:password.
func userAndPassword(auth string) *url.Userinfo {
	if auth == "" {
		return nil
	}
	if user, password, ok := strings.Cut(auth, ":"); ok {
		return url.UserPassword(user, password)
	}
	return url.UserPassword("", auth)
}

// address returns the URL of a Redis, or nil after an error.
func (r *reader) address(prefix string) *url.URL {
	u := &url.URL{Scheme: "redis", User: userAndPassword(r.get(prefix + "AUTH"))}
	isTLS := r.is(prefix + "TLS")
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
			return r.unixSocket(u, prefix, where, isTLS)
		}
	case "sentinel":
		master, hosts, ok := strings.Cut(where, ",")
		if !ok {
			r.fail(prefix+"URL", "must be MASTER,HOST:PORT,HOST:PORT with %sTYPE=SENTINEL", prefix)
			return nil
		}
		u.Scheme, where, u.Path = "redis+sentinel", hosts, "/"+master
	case "cluster":
		u.Scheme = "redis+cluster"
	default:
		r.fail(prefix+"TYPE", "must be SINGLE, SENTINEL or CLUSTER, got %q", kind)
		return nil
	}
	return r.hosts(u, prefix, where, isTLS)
}

func (r *reader) unixSocket(u *url.URL, prefix, path string, isTLS bool) *url.URL {
	if isTLS {
		r.fail(prefix+"TLS", "there is no TLS on a Unix socket; set %sSOCKET_TYPE=tcp to connect to Redis by TCP", prefix)
		return nil
	}
	if !strings.HasPrefix(path, "/") {
		r.fail(prefix+"URL", "must be a path that begins with / because %sSOCKET_TYPE is unix; set it to tcp for HOST:PORT",
			prefix)
		return nil
	}
	u.Scheme, u.Path = "unix", path
	return u
}

// hosts parses HOST:PORT,HOST:PORT, each of which may be a URL.
func (r *reader) hosts(u *url.URL, prefix, where string, isTLS bool) *url.URL {
	var hosts []string
	for host := range strings.SplitSeq(where, ",") {
		host = strings.TrimSpace(host)
		if !strings.Contains(host, "://") {
			if strings.Contains(host, "@") {
				r.fail(prefix+"URL", "a HOST:PORT has no @; write a password into %sAUTH, or "+
					"redis://[USER:PASSWORD@]HOST:PORT", prefix)
				return nil
			}
			host = "redis://" + host
		}
		one, err := url.Parse(host)
		if err != nil || one.Scheme != "redis" && one.Scheme != "rediss" || one.Host == "" {
			r.fail(prefix+"URL", "must be HOST:PORT or redis://[USER:PASSWORD@]HOST:PORT[/DB], with special characters of a "+
				"password as %%XX")
			return nil
		}
		isTLS = isTLS || one.Scheme == "rediss"
		u.User = cmp.Or(one.User, u.User)
		db := strings.Trim(one.Path, "/")
		for option, values := range one.Query() {
			if option != "db" {
				r.fail(prefix+"URL", "an option after ? is not known; write HOST:PORT or HOST:PORT?db=DB")
				return nil
			}
			db = values[0]
		}
		if db != "" && u.Scheme != "redis+cluster" {
			u.Path = strings.TrimSuffix(u.Path, "/") + "/" + db
		}
		hosts = append(hosts, one.Host)
	}
	u.Host = strings.Join(hosts, ",")
	if isTLS {
		u.Scheme = strings.Replace(u.Scheme, "redis", "rediss", 1)
	}
	return u
}
