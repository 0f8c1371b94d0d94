package redisstore_test

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/certtest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
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
		{"redis://", "there is no host"},
		{"redis://:6379", "there is no host"},
		{"redis://u:pa ss@h:1/0", "user or password have special characters; write them as %XX"},
		{"redis://u:secret%zz@h:1/0", "user or password have special characters; write them as %XX"},
		{"redis://u:secret/rest@h:1/0", "there is an @ behind the host; write special characters of a password as %XX"},
		{"redis://u:secret?rest@h:1/0", "there is an @ behind the host"},
		{"redis://u:secret#rest@h:1/0", "there is an @ behind the host"},
		{"redis://u:1/rest@h:1/0", "there is an @ behind the host"},
		{"redis://h:1/0#x", "there is a #; write it as %23"},
		{"redis://h:secret", "a port must be a number from 1 to 65535"},
		{"redis://h:0", "a port must be a number from 1 to 65535"},
		{"redis://h:70000", "a port must be a number from 1 to 65535"},
		{"redis://a:b:c", "a host has more than one colon"},
		{"redis://a,b/0", "several hosts are those of redis+sentinel:// or redis+cluster://"},
		{"redis://u:secret@h:1/zero", `the database must be a number, got "zero"`},
		{"redis://h/0?max_retries=3", `option "max_retries" is not known; use timeout, key_prefix`},
		{"redis://h/0?timeout=20", `option timeout must be a time such as 20ms, got "20"`},
		{"redis://h/0?pool_size=0", `option pool_size must be a number from 1 to 10000, got "0"`},
		{"redis://h/0?db=3", `option "db" is not known`},
		{"redis://h?tls_ca=/x", "option tls_ca is for TLS; write rediss instead of redis"},
		{"redis://h?sentinel_password=x", "option sentinel_password is for redis+sentinel://"},
		{"rediss://h?tls_cert=/x", "tls_cert and tls_key go together"},
		{"redis://:secret@h?password_file=/x", "there is a password and a password_file; remove one of the two"},
		{"unix://run/redis.sock", "a path of a socket begins with a slash: unix:///path"},
		{"unix://", "there is no path of a socket"},
		{"redis+sentinel://a:1,b:2", "there is no name of a master behind the sentinels"},
		{"redis+sentinel://a:1/0/0", ""},
		{"redis+sentinel://a:1/m/x", `the database must be a number, got "x"`},
		{"redis+cluster://a:1,,b", "there is no host"},
		{"redis+cluster://a:1/2", "a cluster has database 0 only, got 2"},
	} {
		err := redisstore.CheckURL(tc.url)
		if got := fmt.Sprint(err); (err == nil) != (tc.want == "") || !strings.Contains(got, tc.want) && tc.want != "" {
			t.Errorf("%q: %v, want %q", tc.url, err, tc.want)
		}
		for _, shown := range []string{fmt.Sprint(err), redisstore.Redact(tc.url)} {
			for _, secret := range []string{"secret", "pa ss", "p@ss", "p%40ss", "rest"} {
				if strings.Contains(shown, secret) {
					t.Errorf("%q: %q shows the password", tc.url, shown)
				}
			}
		}
	}
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	if _, err := redisstore.New(redisstore.Options{URL: "redis://h:1/0", Timeout: -1}); err == nil {
		t.Error("a negative timeout was accepted")
	}
	none := filepath.Join(t.TempDir(), "none")
	for url, want := range map[string]string{
		"redis://h/zero":                    "the database must be a number",
		"redis://h?password_file=" + none:   "password_file: open " + none,
		"rediss://h?tls_ca=" + none:         "tls_ca: open " + none,
		"rediss://h?tls_ca=/dev/null":       "tls_ca: /dev/null has no certificate in PEM",
		"rediss://h?tls_cert=a&tls_key=b/b": "tls_cert and tls_key: open a",
	} {
		if _, err := redisstore.New(redisstore.Options{URL: url}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", url, err, want)
		}
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"redis://user:p@ss@host:6379/0?x=y": "redis://host:6379/0",
		"rediss://host/1":                   "rediss://host/1",
		"unix://u:p@/run/redis.sock?db=1":   "unix:///run/redis.sock",
		"redis://:12?3@host":                "redis://...",
		"redis://:12/3@host":                "redis://...",
		"redis://u:p ss@host":               "redis://host",
		"redis://user:pass":                 "redis://...",
		"redis://[::1]:6379/0":              "redis://[::1]:6379/0",
		"nonsense":                          "(not a URL)",
		"redis+sentinel://u:p@a:1,b:2/m/0?sentinel_password=x": "redis+sentinel://a:1,b:2/m/0",
	} {
		if got := redisstore.Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
}

// counts takes one hit, which has to be counted.
func counts(t *testing.T, s *redisstore.Store) error {
	t.Helper()
	return s.Take(t.Context(), []limiter.Hit{{Key: t.Name(), Policy: funnel(t, 1000, time.Hour), N: 1}}, make([]limiter.Decision, 1))
}

// rights are what docs/operations.md says that a user needs.
const rights = "~weir:* &weir:* +evalsha +eval +set +get +mget +del +time +publish +subscribe +ping +select +client|setname"

func TestUserOfAnACL(t *testing.T) {
	server := redistest.Start(t, strings.Fields("--user default off --user weir on >s3:cr/t "+rights)...)
	good := "redis://weir:" + url.PathEscape("s3:cr/t") + "@" + server.Addr() + "/0"
	s := open(t, redisstore.Options{URL: good})
	if err := errors.Join(s.Ping(t.Context()), counts(t, s)); err != nil {
		t.Error(err)
	}
	hearRefunds(t, s, []string{"k"}, limiter.Hit{Key: "k", Policy: funnel(t, 10, time.Hour), N: -1})
	bad := open(t, redisstore.Options{URL: strings.Replace(good, "s3", "n0", 1)})
	if err := counts(t, bad); !errors.Is(err, limiter.ErrUnavailable) || strings.Contains(err.Error(), "cr") {
		t.Errorf("wrong password: %v, want an ErrUnavailable without it", err)
	}
}

// TestPasswordFile changes the password on the server and in the file.
func TestPasswordFile(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "one")
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	s := open(t, redisstore.Options{URL: "redis://" + server.Addr() + "?password_file=" + file})
	if err := counts(t, s); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	server.SetArgs("--requirepass", "two")
	write("two")
	server.Restart()
	redistest.Await(t, func() error { return counts(t, s) })
}

// TestTLS has a server that shows its certificate, and one that asks for ours.
func TestTLS(t *testing.T) {
	ca, stranger := certtest.New(t), certtest.New(t)
	_, open1 := redistest.StartTLS(t, ca, false)
	_, closed := redistest.StartTLS(t, ca, true)
	own := func(a *certtest.Authority) string {
		cert, key := a.Issue("weir", "weir")
		return "&tls_cert=" + cert + "&tls_key=" + key
	}
	for _, tc := range []struct{ name, url, want string }{
		{"authority", "rediss://" + open1 + "?tls_ca=" + ca.CA(), ""},
		{"name", "rediss://" + open1 + "?tls_server_name=redis&tls_ca=" + ca.CA(), ""},
		{"other name", "rediss://" + open1 + "?tls_server_name=other&tls_ca=" + ca.CA(), "not other"},
		{"unknown authority", "rediss://" + open1, "certificate signed by unknown authority"},
		{"own certificate", "rediss://" + closed + "?tls_ca=" + ca.CA() + own(ca), ""},
		{"no certificate", "rediss://" + closed + "?tls_ca=" + ca.CA(), "limit store unavailable"},
		{"a stranger's certificate", "rediss://" + closed + "?tls_ca=" + ca.CA() + own(stranger), "limit store unavailable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := counts(t, open(t, redisstore.Options{URL: tc.url}))
			if tc.want == "" && err != nil {
				t.Error(err)
			}
			if tc.want != "" && (!errors.Is(err, limiter.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), tc.want)) {
				t.Errorf("%v, want an ErrUnavailable that says %q", err, tc.want)
			}
		})
	}
}

// TestCertificatesAreRenewed replaces the authority and all certificates under a running store.
func TestCertificatesAreRenewed(t *testing.T) {
	first, second, dir := certtest.New(t), certtest.New(t), t.TempDir()
	server, addr := redistest.StartTLS(t, first, true)
	authority, cert, key := filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	install := func(a *certtest.Authority) {
		t.Helper()
		newCert, newKey := a.Issue("weir", "weir")
		for to, from := range map[string]string{authority: a.CA(), cert: newCert, key: newKey} {
			text, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(to, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	install(first)
	s := open(t, redisstore.Options{URL: "rediss://" + addr + "?tls_ca=" + authority + "&tls_cert=" + cert + "&tls_key=" + key})
	if err := counts(t, s); err != nil {
		t.Fatal(err)
	}
	newCert, newKey := second.Issue("redis", "127.0.0.1")
	redistest.Do(t, server, "config", "set", "tls-cert-file", newCert, "tls-key-file", newKey, "tls-ca-cert-file", second.CA())
	kick := func() { redistest.Do(t, server, "client", "kill", "type", "normal") } // all connections but this one
	kick()
	redistest.Await(t, func() error {
		if err := counts(t, s); !strings.Contains(fmt.Sprint(err), "certificate") {
			return fmt.Errorf("with the old certificates: %w", err)
		}
		return nil
	})
	install(second)
	redistest.Await(t, func() error { return counts(t, s) })

	if err := os.WriteFile(cert, []byte("half writ"), 0o600); err != nil { // the last ones serve
		t.Fatal(err)
	}
	kick()
	redistest.Await(t, func() error { return counts(t, s) })
}
