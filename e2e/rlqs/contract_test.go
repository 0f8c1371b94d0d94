//go:build e2e

package rlqs

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/weir-ratelimit/weir/internal/test/envoytest"
)

// forever is a TTL beyond the test.
const forever = time.Hour

// errEnd is what the server ends streams with.
var errEnd = errors.New("the server ends the stream")

// rig is one Envoy with two workers and an RLQS server. Domains have streams of their own.
type rig struct {
	envoy  *envoytest.Envoy
	server *quotaServer
	domain string
}

// bucket is a bucket of a domain, and the client that sends its requests.
type bucket struct {
	*client
	rig

	t        *testing.T
	settings string
	header   string // x-bucket
	name     string // bucketName
	marker   string // x-bucket of a bucket that shows when a response is applied
	denies   bool   // what the marker was last assigned
}

// newBucket sends no request of the bucket itself yet.
func (r rig) newBucket(t *testing.T, settings string) *bucket {
	t.Helper()
	header := strings.ReplaceAll(t.Name(), "/", ".")
	b := &bucket{
		newClient(t, r.envoy, r.domain), r, t, settings, header, "bucket=" + header, "marker." + header, false,
	}
	b.mark()
	return b
}

// mark sends a request of the marker and returns its status.
func (b *bucket) mark() int {
	return b.client.get(b.t, "x-settings", "allow", "x-bucket", b.marker).Status
}

// get sends a request of the bucket and reports whether Envoy admitted it.
func (b *bucket) get() bool {
	b.t.Helper()
	switch status := b.client.get(b.t, "x-settings", b.settings, "x-bucket", b.header).Status; status {
	case http.StatusOK:
		return true
	case http.StatusTooManyRequests:
		return false
	default:
		b.t.Fatalf("status %d", status)
		return false
	}
}

// open sends the bucket's first request and waits until the server knows it.
func (b *bucket) open() (admitted bool) {
	b.t.Helper()
	admitted = b.get()
	for _, name := range []string{b.name, "bucket=" + b.marker} {
		await(b.t, "first report of "+name, func() bool { return len(b.reports(name)) > 0 })
	}
	return admitted
}

// admitted sends n requests and returns how many Envoy admitted.
func (b *bucket) admitted(n int) int {
	b.t.Helper()
	got := 0
	for range n {
		if b.get() {
			got++
		}
	}
	return got
}

// wantAdmitted sends n requests, of which Envoy shall admit so many.
func (b *bucket) wantAdmitted(n, want int, why string) {
	b.t.Helper()
	if got := b.admitted(n); got != want {
		b.t.Fatalf("%d of %d requests admitted, want %d: %s", got, n, want, why)
	}
}

// reports returns the reports of a bucket so far: those of its own (when it is new), and those at ticks.
func (b *bucket) reports(name string) (reports []usage) {
	for _, m := range b.server.ofDomain(b.domain) {
		if u, ok := m.usages[name]; ok {
			reports = append(reports, u)
		}
	}
	return reports
}

// alone counts the messages that have no bucket but this one.
func (b *bucket) alone() int {
	n := 0
	for _, m := range b.server.ofDomain(b.domain) {
		if _, ok := m.usages[b.name]; ok && !m.isTick() {
			n++
		}
	}
	return n
}

// send sends a response and waits until the worker of this bucket's connection has applied it: the last action turns
// the marker over.
func (b *bucket) send(actions ...*rlqsv3.RateLimitQuotaResponse_BucketAction) {
	b.t.Helper()
	b.denies = !b.denies
	marker, want := allowAll(), http.StatusOK
	if b.denies {
		marker, want = denyAll(), http.StatusTooManyRequests
	}
	b.server.send(b.t, b.domain, append(actions, assign("bucket="+b.marker, marker, forever))...)
	await(b.t, "the response is applied", func() bool { return b.mark() == want })
}

// assign assigns a strategy to the bucket.
func (b *bucket) assign(s *typev3.RateLimitStrategy, ttl time.Duration) {
	b.t.Helper()
	b.send(assign(b.name, s, ttl))
}

// scenarios show one fact each, with a bucket of their own. Each begins before its bucket's first request.
var scenarios = []struct {
	name, settings string
	run            func(b *bucket)
}{
	{"first request is admitted and reported at once", "allow", func(b *bucket) {
		await(b.t, "the marker is there", func() bool { return len(b.reports("bucket="+b.marker)) > 0 })
		if !b.open() {
			b.t.Fatal("denied")
		}
		if u := b.reports(b.name)[0]; u != (usage{allowed: 1}) || b.alone() != 1 {
			b.t.Fatalf("first report %+v, %d reports of its own; want one of one admitted request", u, b.alone())
		}
	}},
	{"DENY_ALL until the first assignment", "deny", func(b *bucket) {
		if b.open() {
			b.t.Fatal("admitted")
		}
		if u := b.reports(b.name)[0]; u != (usage{denied: 1}) {
			b.t.Fatalf("first report %+v, want one denied request", u)
		}
		b.wantAdmitted(3, 0, "no assignment yet")
		b.assign(full(2), forever)
		b.wantAdmitted(5, 2, "a bucket of two")
	}},
	{"usage counts each request once", "allow", func(b *bucket) {
		b.open()
		b.assign(full(5), forever)
		b.wantAdmitted(20, 5, "a bucket of five")
		await(b.t, "all is reported", func() bool {
			var sum usage
			for _, u := range b.reports(b.name) {
				sum.allowed += u.allowed
				sum.denied += u.denied
			}
			return sum.allowed == 6 && sum.denied == 15
		})
		if b.alone() != 1 {
			b.t.Fatalf("%d reports of its own: an assignment is followed by a report of its own", b.alone())
		}
	}},
	{"equal assignment keeps the tokens and extends the TTL", "deny", func(b *bucket) {
		b.open()
		witness(b.t, func() bool { // that the second assignment comes before the end of the first
			begin := time.Now()
			b.send(assign(b.name, denyAll(), forever), assign(b.name, full(5), 2*time.Second))
			three := b.admitted(3)
			b.assign(full(5), forever)
			if time.Since(begin) > 2*time.Second {
				return false
			}
			if three != 3 {
				b.t.Fatalf("%d of 3 requests admitted", three)
			}
			time.Sleep(time.Until(begin.Add(3 * time.Second))) // no event shows that something does not end
			b.wantAdmitted(10, 2, "two tokens were left, and after the first TTL all would be denied")
			return true
		})
	}},
	{"another size keeps the share of tokens that are left", "allow", func(b *bucket) {
		b.open()
		b.assign(full(10), forever)
		b.wantAdmitted(4, 4, "a bucket of ten")
		b.assign(full(20), forever)
		b.wantAdmitted(30, 12, "0.6 of 20")
		b.assign(full(1000), forever)
		b.wantAdmitted(10, 0, "an empty bucket stays empty")
	}},
	{"a share of tokens is rounded down", "allow", func(b *bucket) {
		b.open()
		b.assign(full(10), forever)
		b.wantAdmitted(4, 4, "a bucket of ten")
		b.assign(full(4), forever)
		b.wantAdmitted(10, 2, "0.6 of 4")
	}},
	{"another rate keeps the tokens", "allow", func(b *bucket) {
		b.open()
		b.assign(full(10), forever)
		b.wantAdmitted(4, 4, "a bucket of ten")
		b.assign(tokens(10, 2, time.Hour), forever)
		b.wantAdmitted(10, 6, "six of ten were left")
	}},
	{"another fill_interval alone is not seen", "allow", func(b *bucket) {
		b.open()
		b.assign(full(5), forever)
		b.wantAdmitted(10, 5, "a bucket of five")
		b.assign(tokens(5, 1, time.Second), forever)
		time.Sleep(2 * time.Second)
		b.wantAdmitted(5, 0, "one token an hour still")
		b.assign(tokens(6, 1, time.Second), forever)
		await(b.t, "a token: the interval is seen together with another size", b.get)
	}},
	{"a bucket after a blanket rule is full", "allow", func(b *bucket) {
		b.open()
		b.assign(full(5), forever)
		b.wantAdmitted(10, 5, "a bucket of five")
		b.assign(denyAll(), forever)
		b.wantAdmitted(3, 0, "DENY_ALL")
		b.assign(full(5), forever)
		b.wantAdmitted(10, 5, "full after DENY_ALL")
		b.assign(allowAll(), forever)
		b.wantAdmitted(20, 20, "ALLOW_ALL")
		b.assign(full(5), forever)
		b.wantAdmitted(10, 5, "full after ALLOW_ALL")
	}},
	{"DENY_ALL and a bucket in one response fill it", "allow", func(b *bucket) {
		b.open()
		for size := range uint32(3) {
			b.send(assign(b.name, denyAll(), forever), assign(b.name, full(5+size), forever))
			b.wantAdmitted(20, int(5+size), "full again")
		}
		b.send(assign(b.name, denyAll(), forever), assign(b.name, full(7), forever))
		b.wantAdmitted(20, 7, "full again, of the same size")
	}},
	{"workers see nothing between DENY_ALL and a bucket", "allow", func(b *bucket) {
		b.open()
		b.assign(full(1_000_000), forever)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for range 200 {
				b.server.send(b.t, b.domain, assign(b.name, denyAll(), forever), assign(b.name, full(1_000_000), forever))
			}
		}()
		for n := 0; ; n++ {
			b.wantAdmitted(1, 1, "DENY_ALL was followed by a bucket in the same response")
			select {
			case <-sent:
				b.wantAdmitted(20, 20, "a bucket of a million")
				return
			default:
			}
		}
	}},
	{"tokens come continuously", "allow", func(b *bucket) {
		b.open()
		b.assign(tokens(10, 600, time.Minute), forever) // 10/s
		begin := time.Now()
		got := 0
		await(b.t, "more than ten: 600 once a minute would give ten", func() bool {
			got += b.admitted(1)
			return got > 20
		})
		if most := 10 + 10*time.Since(begin).Seconds() + 1; float64(got) > most {
			b.t.Fatalf("%d requests admitted in %s, want %.0f at most", got, time.Since(begin), most)
		}
	}},
	{"fill_interval below a second is no limit", "allow", func(b *bucket) {
		b.open()
		b.assign(tokens(5, 5, 500*time.Millisecond), forever)
		begin := time.Now()
		got := b.admitted(300)
		if most := 5 + 10*time.Since(begin).Seconds(); float64(got) <= most || got != 300 {
			b.t.Fatalf("%d of 300 requests admitted in %s, want all", got, time.Since(begin))
		}
	}},
	{"fill_interval is cut to whole seconds", "allow", func(b *bucket) {
		b.open()
		witness(b.t, func() bool {
			// 100 in 1.9 s are 53/s; 100 in 1 s are 100/s.
			b.send(assign(b.name, denyAll(), forever), assign(b.name, tokens(10, 100, 1900*time.Millisecond), forever))
			begin := time.Now()
			got := 0
			for time.Since(begin) < time.Second {
				got += b.admitted(1)
			}
			return float64(got) > 10+60*time.Since(begin).Seconds()
		})
	}},
	{"requests_per_time_unit is dropped", "allow", func(b *bucket) {
		b.open()
		b.assign(full(5), forever)
		b.wantAdmitted(3, 3, "a bucket of five")
		b.assign(perUnit(1000), time.Second)
		time.Sleep(1500 * time.Millisecond)
		b.wantAdmitted(10, 2, "the assignment before stays, with its TTL")
		b.assign(perUnit(0), forever)
		b.assign(nil, forever)
		b.wantAdmitted(10, 0, "an assignment without a strategy is dropped as well")
	}},
	{"an assignment of an unknown bucket is dropped", "deny", func(b *bucket) {
		await(b.t, "the marker is there", func() bool { return len(b.reports("bucket="+b.marker)) > 0 })
		b.assign(allowAll(), forever)
		if b.open() {
			b.t.Fatal("the first request was admitted by an assignment from before")
		}
	}},
	{"abandon erases the bucket and its usage", "deny", func(b *bucket) {
		b.open()
		b.assign(full(5), forever)
		witness(b.t, func() bool { // that no tick came between
			before := len(b.server.ticksOf(b.domain))
			alone := b.alone()
			b.send(assign(b.name, denyAll(), forever), assign(b.name, full(5), forever))
			b.wantAdmitted(10, 5, "a bucket of five")
			b.send(abandon(b.name))
			if len(b.server.ticksOf(b.domain)) != before {
				b.get() // the bucket again
				return false
			}
			at := b.server.awaitTick(b.t, b.domain)
			if u, ok := at.usages[b.name]; ok {
				b.t.Fatalf("an abandoned bucket is reported: %+v", u)
			}
			if b.get() {
				b.t.Fatal("admitted: the assignment outlives the bucket")
			}
			await(b.t, "a report of its own", func() bool { return b.alone() == alone+1 })
			reports := b.reports(b.name)
			if u := reports[len(reports)-1]; u != (usage{denied: 1}) {
				b.t.Fatalf("first report after abandon %+v, want one denied request", u)
			}
			return true
		})
	}},
	{"TTL unset ends at once", "deny", func(b *bucket) {
		b.open()
		b.assign(allowAll(), -1)
		await(b.t, "no_assignment_behavior again", func() bool { return !b.get() })
		b.assign(allowAll(), 0)
		await(b.t, "no_assignment_behavior again", func() bool { return !b.get() })
		b.assign(allowAll(), 900*time.Millisecond)
		await(b.t, "no_assignment_behavior again", func() bool { return !b.get() })
	}},
	{"TTL and the fallback's timeout are cut to whole seconds", "fallback", func(b *bucket) {
		b.open()
		witness(b.t, func() bool {
			sent := time.Now()
			b.assign(allowAll(), 1900*time.Millisecond)
			admitted := sent // when a request was last admitted
			for begin := sent; b.get(); begin = time.Now() {
				admitted = begin
			}
			denied := time.Now()
			if denied.Sub(sent) < 950*time.Millisecond {
				b.t.Fatalf("denied %s after the assignment: it had a second at least", denied.Sub(sent))
			}
			for !b.get() {
				time.Sleep(time.Millisecond)
			}
			again := time.Now()
			if again.Sub(admitted) < 1950*time.Millisecond {
				b.t.Fatalf("the fallback lasted %s at most, its timeout is 2.9 s", again.Sub(admitted))
			}
			return denied.Sub(sent) < 1900*time.Millisecond && again.Sub(admitted) < 2900*time.Millisecond
		})
	}},
	{"a fallback without timeout is left at once", "fallback-without-timeout", func(b *bucket) {
		b.open()
		b.assign(denyAll(), time.Second)
		await(b.t, "no_assignment_behavior: the fallback would deny for ever", b.get)
	}},
	{"a fallback that is a token bucket", "fallback-bucket", func(b *bucket) {
		b.open()
		b.assign(denyAll(), time.Second)
		await(b.t, "the fallback", b.get)
		b.wantAdmitted(10, 2, "a bucket of three, and one token is gone")
	}},
	{"a fallback takes over the share of tokens that are left", "fallback-bucket", func(b *bucket) {
		b.open()
		witness(b.t, func() bool { // that the requests come before the end
			begin := time.Now()
			b.send(assign(b.name, denyAll(), forever), assign(b.name, full(10), 2*time.Second))
			used := b.admitted(5)
			if time.Since(begin) > 2*time.Second || used != 5 {
				return false
			}
			time.Sleep(time.Until(begin.Add(3 * time.Second)))
			got := b.admitted(10)
			if got == 3 {
				b.t.Fatal("the fallback began full")
			}
			return got == 1 // half of three
		})
	}},
	{"an assignment like the fallback takes over its tokens", "fallback-bucket", func(b *bucket) {
		b.open()
		b.assign(denyAll(), time.Second)
		await(b.t, "the fallback", b.get)
		b.assign(full(3), forever)
		b.wantAdmitted(10, 2, "one of three is gone")
	}},
	{"reuse_last_assignment is no fallback", "reuse", func(b *bucket) {
		b.open()
		b.assign(allowAll(), time.Second)
		await(b.t, "no_assignment_behavior", func() bool { return !b.get() })
	}},
	{"a bucket after an expired one is full", "allow", func(b *bucket) {
		b.open()
		b.assign(full(3), time.Second)
		await(b.t, "the bucket is empty", func() bool { return b.admitted(10) < 10 })
		await(b.t, "no_assignment_behavior", func() bool { return b.admitted(10) == 10 })
		b.assign(full(3), forever)
		b.wantAdmitted(5, 3, "a bucket of three")
	}},
	{"deny_response_settings", "response", func(b *bucket) {
		r := b.client.get(b.t, "x-settings", "response", "x-bucket", b.header)
		if r.Status != http.StatusServiceUnavailable || r.Body != "later" || r.Header.Get("x-limit") != "quota" {
			b.t.Fatalf("%d %q %v", r.Status, r.Body, r.Header)
		}
	}},
	{"the response is bare by default", "deny", func(b *bucket) {
		r := b.client.get(b.t, "x-settings", "deny", "x-bucket", b.header, "x-log", "1")
		names := slices.Sorted(maps.Keys(r.Header))
		if want := []string{"Content-Length", "Date", "Server"}; r.Body != "" || !slices.Equal(names, want) {
			b.t.Fatalf("%d %q %v, want the headers %v", r.Status, r.Body, r.Header, want)
		}
		want := fmt.Sprintf(`denied %s RFCF rate_limited_by_quota {"bucket":"%[1]s"}`, b.header)
		await(b.t, want, func() bool { return strings.Contains(b.envoy.Output(), want) })
	}},
	{"requests that no matcher matches are admitted and not reported", "none", func(b *bucket) {
		b.wantAdmitted(5, 5, "no bucket")
		if at := b.server.awaitTick(b.t, b.domain); at.usages[b.name] != (usage{}) {
			b.t.Fatalf("reported: %+v", at.usages[b.name])
		}
	}},
	{"a header that is missing or empty", "tenant", func(b *bucket) {
		get := func(headers ...string) {
			headers = append([]string{"x-settings", "tenant", "x-bucket", b.header}, headers...)
			if r := b.client.get(b.t, headers...); r.Status != http.StatusOK {
				b.t.Fatalf("%d", r.Status)
			}
		}
		get()                // admitted and not reported
		get("x-tenant", "a") // bucket and tenant
		await(b.t, "the report with a tenant", func() bool { return len(b.reports(b.name+",tenant=a")) > 0 })
		if n := len(b.reports(b.name)); n > 0 {
			b.t.Fatal("a request without the header is reported")
		}
		get("x-tenant", "") // the entry is left out
		await(b.t, "the report without a tenant", func() bool { return len(b.reports(b.name)) > 0 })
	}},
	{"listeners share a bucket and nothing switches the filter off", "allow", func(b *bucket) {
		b.open()
		b.assign(full(10), forever)
		b.wantAdmitted(4, 4, "a bucket of ten")
		b.client = newClient(b.t, b.envoy, "neighbor")
		await(b.t, "the other worker has the assignment", func() bool { return b.mark() == http.StatusTooManyRequests })
		b.wantAdmitted(20, 6, "six of ten were left")
	}},
	{"keep_matching is no preview", "preview", func(b *bucket) {
		b.open()
		b.wantAdmitted(5, 5, "no assignment yet")
		b.assign(denyAll(), forever)
		b.wantAdmitted(5, 0, "enforced nevertheless")
		b.assign(full(2), forever)
		b.wantAdmitted(5, 2, "enforced nevertheless")
	}},
	{"workers share a bucket", "deny", func(b *bucket) {
		b.open()
		b.assign(full(10), forever)
		var clients []*client
		for range 32 {
			clients = append(clients, newClient(b.t, b.envoy, b.domain))
		}
		var wg sync.WaitGroup
		admitted := make([]int, len(clients))
		for i, c := range clients {
			wg.Go(func() {
				for range 20 {
					r, err := c.try(b.t, "x-settings", b.settings, "x-bucket", b.header)
					if err != nil {
						b.t.Error(err)
						return
					}
					if r.Status == http.StatusOK {
						admitted[i]++
					}
				}
			})
		}
		wg.Wait()
		sum := 0
		for _, n := range admitted {
			sum += n
		}
		if sum != 10 {
			b.t.Fatalf("%d requests admitted, want 10", sum)
		}
		for worker := range 2 {
			name := fmt.Sprintf("listener.127.0.0.1_0.worker_%d.downstream_cx_total", worker)
			if b.envoy.Stat(name) == 0 {
				b.t.Fatalf("worker %d had no connection: %s", worker, name)
			}
		}
	}},
}

// witness repeats an attempt that a slow machine may spoil until it shows what it is to show.
func witness(t *testing.T, attempt func() bool) {
	t.Helper()
	for range 4 {
		if attempt() {
			return
		}
	}
	t.Fatal("not seen in four attempts")
}

// TestContract shows what Envoy's filter rate_limit_quota does. If a new Envoy fails it, what internal/rlqs rests on
// has changed: docs/adr/0076.
func TestContract(t *testing.T) {
	t.Parallel()
	server, away := startQuotaServer(t, ""), startQuotaServer(t, "")
	envoy := envoytest.StartWith(t, bootstrap([]string{
		quotaListener("facts", "facts", "rlqs", "", ""), quotaListener("neighbor", "facts", "rlqs", switchedOff, ""),
		quotaListener("ends", "ends", "rlqs", "", ""), quotaListener("away", "away", "away", "", ""),
	}, []string{cluster("rlqs", grpcOptions, server.addr), cluster("away", grpcOptions, away.addr)}), envoytest.Options{Workers: 2})

	if n := len(server.ofDomain("facts")); n > 0 {
		t.Fatalf("%d messages before the first request", n)
	}
	var wg sync.WaitGroup
	run := func(name string, f func(t *testing.T)) { wg.Go(func() { t.Run(name, f) }) } // whatever -parallel says
	for _, s := range scenarios {
		run(s.name, func(t *testing.T) { s.run(rig{envoy, server, "facts"}.newBucket(t, s.settings)) })
	}
	run("ticks", func(t *testing.T) { ticks(rig{envoy, server, "facts"}.newBucket(t, "allow")) })
	run("stream ended", func(t *testing.T) { streamEnded(rig{envoy, server, "ends"}.newBucket(t, "allow")) })
	run("server away", func(t *testing.T) { serverAway(rig{envoy, away, "away"}.newBucket(t, "allow")) })
	wg.Wait()
}

// ticks shows when Envoy reports a bucket that has one request and no more, and that it always does.
func ticks(b *bucket) {
	b.open()
	await(b.t, "four ticks", func() bool { return len(b.reports(b.name)) >= 5 })
	reports := b.reports(b.name)
	for i, u := range reports {
		// The time is cut: of a tick's 5 s it is often 4 s. A machine that stands still reports later.
		ok := u.allowed == 0 && u.elapsed >= tick-time.Second
		switch i {
		case 0:
			ok = u == usage{allowed: 1}
		case 1:
			ok = u.allowed == 0 // how long until the tick is chance
		}
		if !ok || u.denied > 0 || u.elapsed%time.Second != 0 {
			b.t.Fatalf("report %d of %+v: want the first at once, then every 5 s, cut to whole seconds", i, reports)
		}
	}
	streams := b.server.streamsOf(b.domain)
	if len(streams) != 1 {
		b.t.Fatalf("%d streams", len(streams))
	}
	if got := streams[0].headers.Get("x-weir-node"); !slices.Equal(got, []string{"node-7"}) {
		b.t.Fatalf("initial_metadata %q", got)
	}
	known := map[string]bool{}
	for _, m := range b.server.ofDomain(b.domain) {
		if m.isTick() {
			for name := range known {
				if _, ok := m.usages[name]; !ok && !strings.Contains(name, "abandon") {
					b.t.Fatalf("%s is not in a tick", name)
				}
			}
		}
		for name := range m.usages {
			known[name] = true
		}
	}
}

// streamEnded shows what happens when the server ends a stream.
func streamEnded(b *bucket) {
	b.open()
	b.assign(full(5), forever)
	b.server.awaitTick(b.t, b.domain)
	b.server.streamsOf(b.domain)[0].end <- errEnd
	await(b.t, "Envoy has seen the end", func() bool { return b.server.receivedError(b.server.streamsOf(b.domain)[0]) != nil })
	b.wantAdmitted(8, 5, "the assignment stays")
	b.wantAdmitted(2, 0, "the assignment stays")

	// A bucket that begins now: its first report is lost, and with it its first request.
	late := "late." + b.header
	for range 3 {
		if r := b.client.get(b.t, "x-settings", "allow", "x-bucket", late); r.Status != http.StatusOK {
			b.t.Fatalf("%d", r.Status)
		}
	}
	await(b.t, "a new stream", func() bool { return len(b.server.streamsOf(b.domain)) == 2 })
	again := b.server.streamsOf(b.domain)[1]
	all := b.server.ofDomain(b.domain)
	first := all[slices.IndexFunc(all, func(m message) bool { return m.stream == again })]
	want := []string{b.name, "bucket=" + late, "bucket=" + b.marker}
	slices.Sort(want)
	if !slices.Equal(first.names(), want) {
		b.t.Fatalf("first message of the new stream has %v, want %v", first.names(), want)
	}
	if u := first.usages["bucket="+late]; u.allowed != 2 || u.denied != 0 {
		b.t.Fatalf("%+v of the late bucket, want two of three requests", u)
	}
	if u := first.usages[b.name]; u.allowed != 5 || u.denied != 5 || u.elapsed < tick-time.Second {
		b.t.Fatalf("%+v at the tick: want all that came meanwhile", u)
	}
	b.send(assign(b.name, full(7), forever))
	b.wantAdmitted(10, 0, "an empty bucket stays empty over streams")
}

// serverAway shows what happens when nothing listens at a tick.
func serverAway(b *bucket) {
	b.open()
	b.server.awaitTick(b.t, b.domain)
	addr := b.server.addr
	b.server.stop()
	b.wantAdmitted(11, 11, "ALLOW_ALL by default")
	name := "cluster.away.upstream_cx_connect_fail"
	await(b.t, "a tick that cannot connect", func() bool { return b.envoy.Stat(name) > 0 })
	b.wantAdmitted(13, 13, "ALLOW_ALL by default")
	b.server = startQuotaServer(b.t, addr)
	await(b.t, "a tick that connects", func() bool { return len(b.server.ofDomain(b.domain)) > 0 })
	first := b.server.ofDomain(b.domain)[0]
	if u := first.usages[b.name]; u.allowed != 13 || u.elapsed < tick-time.Second {
		b.t.Fatalf("first message %+v; want 13 requests: the 11 of the tick before are lost", first.usages)
	}
}
