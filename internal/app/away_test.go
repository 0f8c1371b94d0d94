package app

import (
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// warnings are the lines of the log that are a warning or worse.
func (p *process) warnings() (lines []string) {
	for line := range strings.Lines(p.log.String()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			lines = append(lines, line)
		}
	}
	return lines
}

// A start without Redis is one warning, which says what that means for requests, and the return of Redis one line.
func TestRedisAwayAtStart(t *testing.T) {
	t.Parallel()
	server, named := redistest.Start(t), redistest.Start(t)
	server.Stop()
	o := options(t, rulesOf("1"))
	o.Store, o.NamedStores = server.URL(), map[string]string{"daily": named.URL()}
	p := start(t, o)
	want(t, "readiness without Redis", "503", p.ready)
	<-time.After(3 * time.Second) // boosts and refunds have been tried several times
	away := "Redis unreachable at " + server.URL() + ": requests follow on_store_failure=allow"
	if lines := p.warnings(); len(lines) != 1 || !strings.Contains(lines[0], `level=WARN msg="`+away+`"`) {
		t.Errorf("the warnings are %q, want one: %s", lines, away)
	}
	server.Restart()
	again := `level=INFO msg="Redis reachable again at ` + server.URL() + `"`
	want(t, "the line on its return", "1 line", func() string {
		if p.logged(again) == 1 {
			return "1 line"
		}
		return p.log.String()
	})
	named.Kill()
	want(t, "the line on another store", "1 line", func() string {
		if p.logged("Redis unreachable at daily="+named.URL()+": requests follow on_store_failure=allow") == 1 {
			return "1 line"
		}
		return p.log.String()
	})
	p.wait()
	if lines := p.warnings(); len(lines) != 2 || p.logged(again) != 1 {
		t.Errorf("log:\n%s", p.log)
	}
}

// A user who may not hear of refunds is warned of, since Redis is there.
func TestRefundsNotHeard(t *testing.T) {
	server := redistest.Start(t)
	redistest.Do(t, server, "acl", "setuser", "weir", "on", ">secret", "~*", "resetchannels", "+@all")
	o := options(t, rulesOf("1"))
	o.Store, o.KnownDenials = "redis://weir:secret@"+server.Addr(), true
	p := start(t, o)
	want(t, "the warning", "1 line", func() string {
		if p.logged(`level=WARN msg="refunds by other replicas are not heard`) == 1 {
			return "1 line"
		}
		return p.log.String()
	})
}

// A user who may not run scripts is an error at the start, which names the right that is missing.
func TestMissingRight(t *testing.T) {
	for _, right := range []string{"evalsha", "eval"} {
		server := redistest.Start(t)
		redistest.Do(t, server, "acl", "setuser", "weir", "on", ">secret", "~*", "&*", "+@all", "-"+right)
		o := options(t, rulesOf("1"))
		o.Store = "redis://weir:secret@" + server.Addr()
		p := start(t, o)
		want(t, "the error", "1 line", func() string {
			for line := range strings.Lines(p.log.String()) {
				if strings.Contains(line, `level=ERROR msg="Redis does not count at redis://`+server.Addr()) &&
					strings.Contains(line, "no permissions to run the '"+right+"' command") &&
					strings.Contains(line, `check="give Weir's user in Redis the right that the error names`) {
					return "1 line"
				}
			}
			return p.log.String()
		})
	}
}

// distant is a TCP proxy that is so far away from a server: a round trip takes that much longer.
func distant(t *testing.T, server string, roundTrip time.Duration) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		wait.Wait()
	})
	wait.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server)
			if err != nil {
				_ = near.Close()
				continue
			}
			wait.Go(func() { delayed(far, near, roundTrip/2) })
			wait.Go(func() { delayed(near, far, roundTrip/2) })
		}
	})
	return l.Addr().String()
}

// delayed copies what comes, each piece as much later, and closes both.
func delayed(to, from net.Conn, by time.Duration) {
	type piece struct {
		data []byte
		at   time.Time
	}
	pieces := make(chan piece, 1000)
	go func() {
		defer close(pieces)
		for {
			data := make([]byte, 4096)
			n, err := from.Read(data)
			if n > 0 {
				pieces <- piece{data[:n], time.Now().Add(by)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		<-time.After(time.Until(p.at))
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	// The reader ends, and so does the other direction.
	_, _ = to.Close(), from.Close()
	for range pieces {
	}
}

var policySeconds = regexp.MustCompile(`(?m)^weir_store_policy_seconds\{store="\(default\)"\} ([0-9.]+)$`)

// A Redis that is always 20 ms away decides nothing with the default timeout of 15 ms. That is not silent: the log says
// again and again that the policy decides, why, and what to check, and the metric for how long.
func TestDistantRedisIsLoud(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := options(t, rulesOf("1"))
	o.Store, o.StoreTimeout = "redis://"+distant(t, server.Addr(), 20*time.Millisecond), 15*time.Millisecond
	p := start(t, o, func(a *App) {
		a.store.OutageTimes = store.OutageTimes{Quiet: 100 * time.Millisecond, Loud: time.Second}
	})
	loud := `level=ERROR msg="on_store_failure has been deciding in place of Redis: limits are not enforced as written"`
	requests := 0
	want(t, "the loud line", "1 line", func() string {
		if got := p.ask("me"); got != "OK" {
			t.Fatalf("a request is answered %s, want the policy's OK", got)
		}
		requests++
		if p.logged(loud) == 1 {
			return "1 line"
		}
		return p.log.String()
	})
	for _, part := range []string{" cause=timeout ", " store=redis://127.0.0.1:", " requests=", "--store-timeout=15ms"} {
		for line := range strings.Lines(p.log.String()) {
			if strings.Contains(line, loud) && !strings.Contains(line, part) {
				t.Errorf("the line has no %q:\n%s", part, line)
			}
		}
	}
	_, metrics := p.http("GET", "/metrics")
	m := policySeconds.FindStringSubmatch(metrics)
	if m == nil || !strings.Contains(m[1], ".") || strings.HasPrefix(m[1], "0") {
		t.Errorf("weir_store_policy_seconds is %q, want more than a second", m)
	}
	if n := p.logged("store answers again"); n > 0 {
		t.Errorf("the log says %d times that the store answers", n)
	}
}

// Where requests ask two stores, as the documentation's burst and daily limits do, the log and the metrics blame the
// one that hangs, and requests stop waiting for it.
func TestHangingNamedStoreIsBlamed(t *testing.T) {
	first, daily := redistest.Start(t), redistest.Start(t)
	o := options(t, "domain: shop\ndescriptors: [{key: client, rate_limits: ["+
		"{name: burst, algorithm: token_bucket, requests_per_unit: 50, unit: second}, "+
		"{name: daily, store: daily, requests_per_unit: 100000, unit: day}]}]\n")
	o.Store, o.NamedStores = first.URL(), map[string]string{"daily": daily.URL()}
	o.StoreTimeout = 250 * time.Millisecond
	p := start(t, o)
	want(t, "readiness", "200", p.ready)
	p.ask("me")
	daily.Pause()
	defer daily.Resume()
	want(t, "the breaker", "1", func() string {
		p.ask("me")
		_, metrics := p.http("GET", "/metrics")
		_, open, _ := strings.Cut(metrics, "\nweir_store_breaker_open ")
		open, _, _ = strings.Cut(open, "\n")
		return open
	})
	if n := p.logged("store fails"); n != 1 || p.logged(`store="daily=`+daily.URL()+`"`) == 0 {
		t.Errorf("log:\n%s\nwant one outage, of %s", p.log, daily.URL())
	}
	_, metrics := p.http("GET", "/metrics")
	if !strings.Contains(metrics, "\nweir_store_policy_seconds{store=\"(default)\"} 0\n") ||
		strings.Contains(metrics, "\nweir_store_policy_seconds{store=\"daily\"} 0\n") {
		t.Errorf("the metric for how long the policy decides blames the wrong store:\n%s", metrics)
	}
}
