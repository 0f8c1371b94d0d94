package store_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

func TestCheckURL(t *testing.T) {
	for _, tc := range []struct{ url, want string }{
		{"redis://h", ""},
		{"redis://h:1/0", ""},
		{"redis://user:p%40ss@h:1/0?timeout=20ms&pool_size=3&key_prefix=a:", ""},
		{"redis://:p@ss@[::1]:1/3", ""},
		{"rediss://h?tls_ca=/x&tls_cert=/y&tls_key=/z&tls_server_name=n&conn_max_lifetime=1h", ""},
		{"unix:///run/redis.sock?db=3", ""},
		{"unix://u:p@/run/redis.sock", ""},
		{"redis+sentinel://a,b:1,c:2/master/3?sentinel_username=u&sentinel_password=p", ""},
		{"rediss+sentinel://a/master", ""},
		{"redis+cluster://a:1,b:2,c", ""},
		{"rediss+cluster://u:p@a:1/0?password_file=", ""},

		{"", "the scheme must be redis, rediss, unix"},
		{"memory", "the scheme must be redis, rediss, unix"},
		{"http://h:1/", "the scheme must be redis, rediss, unix"},
		{"redis://", "the host is missing"},
		{"redis://:6379", "the host is missing"},
		{"redis://u:pa ss@h:1/0", "user or password have special characters; write them as %XX"},
		{"redis://u:secret%zz@h:1/0", "user or password have special characters; write them as %XX"},
		{"redis://u:secret/rest@h:1/0", "there is an @ after the host; write special characters of a password as %XX"},
		{"redis://u:secret?rest@h:1/0", "there is an @ after the host"},
		{"redis://u:secret#rest@h:1/0", "there is an @ after the host"},
		{"redis://u:1/rest@h:1/0", "there is an @ after the host"},
		{"redis://h:1/0#x", "there is a #; write it as %23"},
		{"redis://h:secret", "a port must be a number from 1 to 65535"},
		{"redis://h:0", "a port must be a number from 1 to 65535"},
		{"redis://h:70000", "a port must be a number from 1 to 65535"},
		{"redis://a:b:c", "a host has more than one colon"},
		{"redis://a,b/0", "several hosts need redis+sentinel:// or redis+cluster://"},
		{"redis://u:secret@h:1/zero", "the database must be a number"},
		{"redis://h/0?max_retries=3", "an option is not known; write & in a value as %26, and use conn_max_idle_time, conn_max_lifetime, dial_timeout, key_prefix, "},
		{"redis://h/0?timeout=20", "option timeout must be a time such as 20ms"},
		{"redis://h/0?pool_size=0", "option pool_size must be a number from 1 to 10000"},
		{"redis://h/0?db=3", "an option is not known"},
		{"redis://:x@h/secret", "the database must be a number; write redis://"},
		{"redis://:x@h/0?dial_timeout=secret", "option dial_timeout must be a time such as 20ms; write redis://"},
		{"redis://:x@h/0?min_idle_conns=secret", "option min_idle_conns must be a number from 1 to 10000; write redis://"},
		{"redis://:x@h/0?proxy=secret", "option proxy must be true or false; write redis://"},
		{"redis+cluster://:x@h/271828", "a cluster has database 0 only; write redis://"},
		{"redis://:x@h/0?timeout=271828s", "option timeout must be between 1ms and 10s; write redis://"},
		{"redis+sentinel://h/m?sentinel_password=pass&secret", "an option is not known"},
		{"redis://h?tls_ca=/x", "option tls_ca needs TLS; write rediss instead of redis"},
		{"redis://h?sentinel_password=x", "option sentinel_password needs redis+sentinel://"},
		{"rediss://h?tls_cert=/x", "tls_cert and tls_key need each other; give both"},
		{"redis://:secret@h?password_file=/x", "there is a password and a password_file; remove one of the two"},
		{"unix://run/redis.sock", "the path of a socket must begin with a slash: unix:///path"},
		{"unix://", "the path of the socket is missing"},
		{"redis+sentinel://a:1,b:2", "the name of the master is missing after the sentinels"},
		{"redis+sentinel://a:1/0/0", ""},
		{"redis+sentinel://a:1/m/x", "the database must be a number"},
		{"redis+cluster://a:1,,b", "the host is missing"},
		{"redis+cluster://a:1/2", "a cluster has database 0 only"},
		{"redis://h?proxy=true", ""},
		{"redis+cluster://h?proxy=false", ""},
		{"redis://h?proxy=no", "option proxy must be true or false"},
		{"redis+cluster://h?proxy=true", "because Weir connects to those servers directly; remove proxy=true"},
	} {
		err := store.CheckURL(tc.url)
		if got := fmt.Sprint(err); (err == nil) != (tc.want == "") || !strings.Contains(got, tc.want) && tc.want != "" {
			t.Errorf("%q: %v, want %q", tc.url, err, tc.want)
		}
		for _, shown := range []string{fmt.Sprint(err), store.Redact(tc.url)} {
			for _, secret := range []string{"secret", "271828", "75h", "pa ss", "p@ss", "p%40ss", "rest"} {
				if strings.Contains(shown, secret) {
					t.Errorf("%q: %q shows the password", tc.url, shown)
				}
			}
		}
	}
}

func TestConnectNamesWhatIsWrong(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for url, want := range map[string]string{
		"redis://h/zero":                    "the database must be a number",
		"redis://h?password_file=h4nter2":   "password_file: no such file or directory; write the path",
		"rediss://h?tls_ca=" + none:         "tls_ca: stat " + none,
		"rediss://h?tls_ca=url_test.go":     "tls_ca: url_test.go has no certificate in PEM",
		"rediss://h?tls_cert=a&tls_key=b/b": "tls_cert, tls_key: stat a",
	} {
		if _, err := store.Connect(url, redisstore.Options{}); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "h4nter2") {
			t.Errorf("%q: %v, want %q", url, err, want)
		}
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"redis://user:p@ss@host:6379/0?timeout=1s": "redis://host:6379/0",
		"rediss://host/1":                          "rediss://host/1",
		"unix://u:p@/run/redis.sock?db=1":          "unix:///run/redis.sock",
		"redis://:12?3@host":                       "redis://...",
		"redis://:12/3@host":                       "redis://...",
		"redis://u:p ss@host":                      "redis://...",
		"redis://user:pass":                        "redis://...",
		"redis://[::1]:6379/0":                     "redis://[::1]:6379/0",
		"nonsense":                                 "(not a URL)",
		"redis+sentinel://u:p@a:1,b:2/m/0?sentinel_password=x": "redis+sentinel://a:1,b:2/m/0",
	} {
		if got := store.Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
}
