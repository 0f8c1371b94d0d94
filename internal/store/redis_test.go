package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

func TestMain(m *testing.M) {
	// While a server is away go-redis tries once a second, and looks only then whether the client was closed.
	casetest.FindLeaks(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// patient is a deadline that even a busy machine meets.
const patient = 5 * time.Second

// open makes the counters of a Redis, which is closed when the test ends.
func open(t *testing.T, url string, timeout time.Duration) *redisstore.Store {
	t.Helper()
	s, err := connect(t, url, redisstore.Options{Timeout: timeout}).Counters("")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// funnel admits this many hits per hour.
func funnel(t *testing.T, limit int64) *limiter.Policy {
	t.Helper()
	p, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.Funnel, Limit: limit, DenyAll: limit == 0, Window: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// counts decides one hit, which must be counted.
func counts(t *testing.T, s *redisstore.Store) error {
	t.Helper()
	hit := []limiter.Hit{{Key: t.Name(), Policy: funnel(t, 1000), N: 1}}
	return s.Take(t.Context(), hit, make([]limiter.Decision, 1))
}

// The URL has an escaped password of an ACL user.
func TestUserOfAnACL(t *testing.T) {
	server := redistest.Start(t, strings.Fields("--user default off --user weir on >s3:cr/t ~weir:* &weir:* +@all")...)
	good := "redis://weir:" + url.PathEscape("s3:cr/t") + "@" + server.Addr() + "/0"
	s := open(t, good, patient)
	if err := errors.Join(s.Ping(t.Context()), counts(t, s)); err != nil {
		t.Error(err)
	}
	bad := open(t, strings.Replace(good, "s3", "n0", 1), patient)
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
	s := opened(t, "redis://"+server.Addr()+"?password_file="+file, slog.New(slog.DiscardHandler))
	run(t, s)
	hit := []limiter.Hit{{Key: "k", Policy: funnel(t, 1000), N: 1}}
	takes := func() error { return s.Take(t.Context(), hit, make([]limiter.Decision, 1)) }
	if err := takes(); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	server.SetArgs("--requirepass", "two")
	write("two")
	server.Restart()
	redistest.Await(t, takes)
}

// TestTLS uses a server with a certificate, and a server that requires client certificates.
func TestTLS(t *testing.T) {
	ca, stranger := proctest.NewAuthority(t), proctest.NewAuthority(t)
	_, open1 := redistest.StartTLS(t, ca, false)
	_, closed := redistest.StartTLS(t, ca, true)
	own := func(a *proctest.Authority) string {
		cert, key := a.Issue("weir", "weir")
		return "&tls_cert=" + cert + "&tls_key=" + key
	}
	for _, tc := range []struct{ name, url, want string }{
		{"authority", "rediss://" + open1 + "?tls_ca=" + ca.CA(), ""},
		{"name", "rediss://" + open1 + "?tls_server_name=redis&tls_ca=" + ca.CA(), ""},
		{"other name", "rediss://" + open1 + "?tls_server_name=other&tls_ca=" + ca.CA(), "not other"},
		{"any name", "rediss://" + open1 + "?tls_server_name=other&tls_skip_hostname=true&tls_ca=" + ca.CA(), ""},
		{"any name of another authority", "rediss://" + open1 + "?tls_skip_hostname=true", "unknown authority"},
		{"unknown authority", "rediss://" + open1, "certificate signed by unknown authority"},
		{"own certificate", "rediss://" + closed + "?tls_ca=" + ca.CA() + own(ca), ""},
		{"no certificate", "rediss://" + closed + "?tls_ca=" + ca.CA(), "limit store unavailable"},
		{"a stranger's certificate", "rediss://" + closed + "?tls_ca=" + ca.CA() + own(stranger), "limit store unavailable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := counts(t, open(t, tc.url, patient))
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
	first, second, dir := proctest.NewAuthority(t), proctest.NewAuthority(t), t.TempDir()
	server, addr := redistest.StartTLS(t, first, true)
	authority, cert, key := filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	install := func(a *proctest.Authority) {
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
	s := open(t, "rediss://"+addr+"?tls_ca="+authority+"&tls_cert="+cert+"&tls_key="+key, patient)
	if err := counts(t, s); err != nil {
		t.Fatal(err)
	}
	newCert, newKey := second.Issue("redis", "127.0.0.1")
	redistest.Do(t, server, "config", "set", "tls-cert-file", newCert, "tls-key-file", newKey, "tls-ca-cert-file",
		second.CA())
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

// If calls may take longer than the subscription to refunds may be silent, the subscription is still pinged in time.
func TestRefundsAreHeardWithALongTimeout(t *testing.T) {
	t.Parallel()
	s := open(t, "redis://"+redistest.Start(t).Addr()+"/0", patient)
	ctx, stop := context.WithCancel(t.Context())
	heard, ended := make(chan bool, 10), make(chan struct{})
	go func() {
		defer close(ended)
		s.Refunds(ctx, func(string, bool) {}, func(yes bool, _ error) { heard <- yes })
	}()
	defer func() { stop(); <-ended }()
	if !casetest.Receive(t, heard, "state of the subscription") {
		t.Fatal("nothing is heard")
	}
	select {
	case <-heard:
		t.Error("a connection on which nothing is said counts as lost")
	case <-time.After(patient + time.Second):
	}
}
