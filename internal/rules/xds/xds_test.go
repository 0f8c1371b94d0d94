package xds

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

func TestMain(m *testing.M) { casetest.FindLeaks(m) }

// patience bounds everything that may take long on a busy machine.
const patience = proctest.Patience

// unit is short, so that tests do not wait long.
const unit = 10 * time.Millisecond

// client is a Source that follows a server.
type client struct {
	*Source

	t       *testing.T
	log     *proctest.Buffer
	changed chan struct{}
}

// follow starts a Source that ends with the test, and does not wait for rules.
func follow(t *testing.T, o Options) *client {
	t.Helper()
	c := &client{t: t, log: &proctest.Buffer{}, changed: make(chan struct{}, 1)}
	o.Log = slog.New(slog.NewTextHandler(c.log, nil))
	if o.NodeID == "" {
		o.NodeID = "envoy-ratelimit"
	}
	if o.MaxSize == 0 {
		o.MaxSize = 64 << 20
	}
	if o.unit == 0 {
		o.unit = unit
	}
	c.Source = New(o)
	done, cancel := context.WithCancel(context.Background())
	cancel()
	c.Start(done, descriptors.Process{}, true)
	watching, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Watch(watching, c.changed)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	<-c.changed // it watches
	return c
}

// await waits until the condition holds.
func (c *client) await(what string, holds func() bool) {
	c.t.Helper()
	proctest.Await(c.t, patience, func() error {
		if holds() {
			return nil
		}
		return fmt.Errorf("%s; %+v\n%s", what, *c.Status(), c.log.String())
	})
}

// rules returns the active limits, as "domain path=limit", sorted by domain.
func (c *client) rules() (all []string) {
	c.t.Helper()
	snapshot, err := c.Read(c.t.Context())
	if err != nil {
		return []string{err.Error()}
	}
	b := descriptors.NewBuilder(descriptors.Process{})
	for _, f := range snapshot.Files {
		if !IsFile(f) {
			c.t.Errorf("file %s", f.Name)
		}
		Add(b, f)
	}
	set, err := b.Build()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, d := range set.Domains() {
		for _, r := range d.Rules() {
			for _, l := range r.Limits {
				all = append(all, fmt.Sprintf("%s %s=%d/%s", d.Name(), r.Path, l.Policy.Limit(), l.Unit))
			}
		}
	}
	return all
}

func (c *client) want(rules ...string) {
	c.t.Helper()
	c.await(strings.Join(rules, ", "), func() bool { return strings.Join(c.rules(), ", ") == strings.Join(rules, ", ") })
}

// wantAck returns the next request, which must be an ACK of the version.
func wantAck(t *testing.T, s *partnertest.ControlPlane, version string) partnertest.Request {
	t.Helper()
	r := s.Next()
	if r.GetErrorDetail() != nil || r.GetVersionInfo() != version || r.GetTypeUrl() != typeURL ||
		len(r.GetResourceNames()) > 0 {
		t.Fatalf("%v, want an ACK of version %q", r.DiscoveryRequest, version)
	}
	return r
}

// Rules are added, changed, sent again with a new version, reduced and removed. A server that has restarted counts its
// versions from 1 again.
func TestRulesComeAndGo(t *testing.T) {
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	c := follow(t, Options{
		Server: s.Addr, NodeID: "node-1", NodeMetadata: map[string]string{"team": "edge"},
		Headers: map[string]string{"x-token": "t"},
	})
	first := wantAck(t, s, "") // which asks
	if first.GetResponseNonce() != "" || first.GetNode().GetId() != "node-1" ||
		first.GetNode().GetMetadata().GetFields()["team"].GetStringValue() != "edge" ||
		first.Headers.Get("x-token")[0] != "t" {
		t.Errorf("first request %v, headers %v", first.DiscoveryRequest, first.Headers)
	}
	if _, err := c.Read(t.Context()); err == nil || !strings.Contains(err.Error(), `has not sent rules for node "node-1"`) {
		t.Errorf("before the first rules: %v", err)
	}

	a, b := partnertest.Domain("a", partnertest.Limit("k", "v", 1)), partnertest.Domain("b", partnertest.Limit("k", "", 2))
	s.Set("1", b, a)
	if r := wantAck(t, s, "1"); r.GetResponseNonce() != "n1" {
		t.Errorf("nonce %q", r.GetResponseNonce())
	}
	c.want("a k=v=1/hour", "b k=2/hour")
	<-c.changed

	s.Set("2", a, b) // as before, in another order
	wantAck(t, s, "2")
	select {
	case <-c.changed:
		t.Error("the same rules are a change")
	default:
	}
	a = partnertest.Domain("a", partnertest.Limit("k", "v", 3))
	s.Set("3", a, b)
	wantAck(t, s, "3")
	c.want("a k=v=3/hour", "b k=2/hour")
	s.Set("4", b)
	wantAck(t, s, "4")
	c.want("b k=2/hour")
	s.Set("5")
	wantAck(t, s, "5")
	c.want()
	s.Set("6", a)
	wantAck(t, s, "6")
	c.want("a k=v=3/hour")

	s.Stop()
	c.await("away", func() bool { return !c.Status().Connected })
	c.want("a k=v=3/hour")
	again := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{Addr: s.Addr})
	again.Set("5", bad("a"))
	if r := again.Next(); r.GetVersionInfo() != "" || r.GetResponseNonce() != "" || r.GetNode().GetId() != "node-1" {
		t.Errorf("a new stream begins with version %q, nonce %q", r.GetVersionInfo(), r.GetResponseNonce())
	}
	if r := again.Next(); r.GetVersionInfo() != "" || r.GetErrorDetail() == nil {
		t.Errorf("%v, want a NACK: nothing was accepted on this stream", r.DiscoveryRequest)
	}
	again.Set("6", b) // a version that the client had of the other server
	r := again.Next()
	for ; r.GetErrorDetail() != nil; r = again.Next() {
		continue
	}
	if r.GetVersionInfo() != "6" {
		t.Errorf("%v, want an ACK of version 6", r.DiscoveryRequest)
	}
	c.want("b k=2/hour")
	if got := c.Status(); !got.Connected || got.Version != "6" || got.Domains != 1 || got.Connections != 2 ||
		got.Refused == 0 ||
		got.Error != "" || got.Server != "xds://"+s.Addr {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(c.log.String(), "no connection to the xDS server; the rules stay in force") {
		t.Errorf("log:\n%s", c.log.String())
	}
}

// bad has an invalid rule.
func bad(domain string) *ratelimitv3.RateLimitConfig {
	return partnertest.Domain(domain, partnertest.Limit("k", "v", 1), partnertest.Limit("", "v", 1))
}

// A domain with errors keeps its last valid rules, or has none. Other domains change, and the response is accepted.
func TestOneBadDomain(t *testing.T) {
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	c := follow(t, Options{Server: s.Addr})
	wantAck(t, s, "")
	s.Set("1", partnertest.Domain("a", partnertest.Limit("k", "", 1)), partnertest.Domain("b", partnertest.Limit("k", "", 1)))
	wantAck(t, s, "1")
	s.Set("2", bad("a"), bad("c"), partnertest.Domain("b", partnertest.Limit("k", "", 2)))
	wantAck(t, s, "2")
	c.want("a k=1/hour", "b k=2/hour")
	got := c.Status()
	if got.RefusedDomains != 2 || got.FindingCount != 2 || got.Domains != 2 || got.Version != "2" {
		t.Errorf("%+v", got)
	}
	for i, domain := range []string{"a", "c"} {
		want := "xds://" + s.Addr + " domain " + domain + ": descriptors[1]: the key is empty"
		if !strings.HasPrefix(got.Findings[i], want) {
			t.Errorf("finding %q, want %s", got.Findings[i], want)
		}
	}
	if log := c.log.String(); strings.Count(log, "rules from xDS refused") != 1 ||
		!strings.Contains(log, "domain a: descriptors[1]") {
		t.Errorf("log:\n%s", log)
	}

	s.Set("3", bad("a"), partnertest.Domain("b", partnertest.Limit("k", "", 3)), &ratelimitv3.RateLimitConfig{Name: "c"})
	wantAck(t, s, "3")
	c.want("a k=1/hour", "b k=3/hour")
	if got := c.Status().Findings; len(got) != 2 || !strings.Contains(strings.Join(got, "\n"),
		`resource name "c" has no domain`) {
		t.Errorf("%q", got)
	}
	s.Set("4", partnertest.Domain("a", partnertest.Limit("k", "", 4)))
	wantAck(t, s, "4")
	c.want("a k=4/hour")
	if got := c.Status(); got.RefusedDomains != 0 || got.FindingCount != 0 || len(got.Findings) != 0 {
		t.Errorf("%+v", got)
	}
	s.Set("5", partnertest.Domain("b", partnertest.Limit("k", "", 5)))
	wantAck(t, s, "5")
	c.want("b k=5/hour") // a is gone, its last good rules too
}

// A response without valid content is refused. If the server sends it again, it is refused under its own version, so
// that the server waits until it has other content, and then sends that at once. No rules change meanwhile.
func TestRefusedAnswers(t *testing.T) {
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	c := follow(t, Options{Server: s.Addr})
	wantAck(t, s, "")
	s.Set("1", partnertest.Domain("a", partnertest.Limit("k", "", 1)), partnertest.Domain("b", partnertest.Limit("k", "", 1)))
	wantAck(t, s, "1")
	nonce := 1
	for _, versions := range [][]string{{"2", "1", "2"}, {"3", "1", "3"}, {"4", "1", "4"}} {
		s.Set(versions[0], bad("a"))
		for _, version := range versions[1:] {
			nonce++
			if r := s.Next(); r.GetVersionInfo() != version || r.GetResponseNonce() != fmt.Sprintf("n%d", nonce) ||
				!strings.Contains(r.GetErrorDetail().GetMessage(), "domain a: descriptors[1]: the key is empty") {
				t.Fatalf("%v, want a NACK of version %s", r.DiscoveryRequest, version)
			}
		}
	}
	c.want("a k=1/hour", "b k=1/hour")
	if got := c.Status(); got.Refused != 6 || got.Version != "1" || got.Domains != 2 || got.RefusedDomains != 1 {
		t.Errorf("%+v", got)
	}
	if n := strings.Count(c.log.String(), "rules from xDS refused"); n != 1 {
		t.Errorf("%d lines for one refused answer that is sent again and again", n)
	}
	s.Set("5", partnertest.Domain("a", partnertest.Limit("k", "", 3)), bad("b"))
	wantAck(t, s, "5")
	c.want("a k=3/hour", "b k=1/hour") // the answers that were refused, and had no b, have not removed its rules
}

// A server that repeats refused content without waiting for a NACK is read no faster than other servers.
func TestFloodOfRefusedAnswers(t *testing.T) {
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	s.Flood(&discoveryv3.DiscoveryResponse{VersionInfo: "1", TypeUrl: "type.googleapis.com/other"})
	began := time.Now()
	c := follow(t, Options{Server: s.Addr, unit: 100 * time.Millisecond})
	const answers = 50
	c.await("answers", func() bool { return c.Status().Refused >= answers })
	took, least := time.Since(began), (answers-1)*c.o.unit/messagesPerUnit
	if seen := c.Status().Refused; took < least {
		t.Errorf("%d answers were judged in %s, want at least %s", seen, took, least)
	}
}

// Invalid responses: of another type, with resources of another type, or with resources that are not messages. A
// resource without a readable domain removes no domain.
func TestBrokenAnswers(t *testing.T) {
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	c := follow(t, Options{Server: s.Addr})
	wantAck(t, s, "")
	good, err := anypb.New(partnertest.Domain("good", partnertest.Limit("k", "", 1)))
	if err != nil {
		t.Fatal(err)
	}
	send := func(version, kind string, resources ...*anypb.Any) {
		s.Send(&discoveryv3.DiscoveryResponse{VersionInfo: version, TypeUrl: kind, Resources: resources})
	}
	send("1", typeURL, good)
	wantAck(t, s, "1")
	for name, test := range map[string]struct {
		kind, want string
		resource   *anypb.Any
	}{
		"another type of answer": {"type.googleapis.com/other", `the response has type "type.googleapis.com/other"`, good},
		"another type": {
			typeURL, "its type is \"x\", not " + typeURL,
			&anypb.Any{TypeUrl: "x", Value: good.GetValue()},
		},
		"no message": {typeURL, "it cannot be decoded", &anypb.Any{TypeUrl: typeURL, Value: []byte("\xff\xff")}},
	} {
		send(name, test.kind, test.resource)
		r := s.Next()
		for ; r.GetErrorDetail() == nil || !strings.Contains(r.GetErrorDetail().GetMessage(), test.want); r = s.Next() {
			if r.GetErrorDetail() == nil {
				t.Fatalf("%s: accepted", name)
			}
		}
		c.want("good k=1/hour")
		if got := c.Status(); got.FindingCount != 1 || !strings.HasPrefix(got.Findings[0], "xds://") {
			t.Errorf("%s: %+v", name, got)
		}
		send(name+" mended", typeURL, good)
		for r := s.Next(); r.GetErrorDetail() != nil; r = s.Next() {
			continue
		}
	}
	other, err := anypb.New(partnertest.Domain("other", partnertest.Limit("k", "", 2)))
	if err != nil {
		t.Fatal(err)
	}
	send("nameless beside another", typeURL, other, &anypb.Any{TypeUrl: "x"})
	wantAck(t, s, "nameless beside another")
	c.want("good k=1/hour", "other k=2/hour")
}

// A response of 10 MiB is used. A response above the bound is refused with the reason, and a much larger one ends the
// stream with an error that says so.
func TestLargeAnswers(t *testing.T) {
	if testing.Short() {
		t.Skip("a large answer")
	}
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	c := follow(t, Options{Server: s.Addr, MaxSize: 6 << 20})
	wantAck(t, s, "")
	var domains []*ratelimitv3.RateLimitConfig
	for i := range 10 {
		var rules []*ratelimitv3.RateLimitDescriptor
		for j := range 2000 {
			rules = append(rules, partnertest.Limit("key", fmt.Sprintf("%0256d", j), 1))
		}
		domains = append(domains, partnertest.Domain(fmt.Sprintf("d%02d", i), rules...))
	}
	s.Set("1", domains...)
	wantAck(t, s, "1")
	snapshot, err := c.Read(t.Context())
	if err != nil || len(snapshot.Files) != 10 {
		t.Fatalf("%d files, %v", len(snapshot.Files), err)
	}
	size := 0
	for _, f := range snapshot.Files {
		size += len(f.Data)
	}
	if size < 5<<20 { // more than gRPC's default
		t.Fatalf("only %d bytes", size)
	}
	s.Set("2", append(domains, domains...)...)
	c.await("too large", func() bool { return strings.Contains(strings.Join(c.Status().Findings, ""), "raise --max-rules-size") })
	s.Set("3", slices.Repeat(domains, 5)...)
	c.await("much too large", func() bool { return strings.Contains(c.Status().Error, "ResourceExhausted") })
	if after, err := c.Read(t.Context()); err != nil || after.Hash != snapshot.Hash {
		t.Errorf("the rules have not stayed: %v", err)
	}
}

// If the server is unreachable at the start, or hangs after it accepts connections, there is an error with the reason.
// The rules are loaded once the server works.
func TestServerIsAwayAtTheStart(t *testing.T) {
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	addr := s.Addr
	s.Stop()
	c := follow(t, Options{Server: addr})
	c.await("an error", func() bool { return strings.Contains(c.Status().Error, "connection refused") })
	_, err := c.Read(t.Context())
	if want := "--rules xds: no rules from xds://" + addr + " yet: Unavailable: "; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	s = partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{Addr: addr})
	s.Set("1", partnertest.Domain("a", partnertest.Limit("k", "", 1)))
	c.want("a k=1/hour")
}

// Start waits for the first rules.
func TestStartWaits(t *testing.T) {
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	s.Set("1", partnertest.Domain("a", partnertest.Limit("k", "", 1)))
	source := New(Options{Server: s.Addr, NodeID: "n", MaxSize: 1 << 20, Log: slog.New(slog.DiscardHandler)})
	defer source.Close() //nolint:errcheck // it returns nil
	source.Start(t.Context(), descriptors.Process{}, false)
	if got, err := source.Read(t.Context()); err != nil || len(got.Files) != 1 {
		t.Errorf("%d files, %v", len(got.Files), err)
	}
}

// The status is JSON with a bounded number of findings.
func TestFindingsAreBounded(t *testing.T) {
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	c := follow(t, Options{Server: s.Addr})
	wantAck(t, s, "")
	var domains []*ratelimitv3.RateLimitConfig
	for i := range 200 {
		d := partnertest.Domain(fmt.Sprintf("d%03d %s", i, strings.Repeat("long", 1000)))
		for range 50 {
			d.Descriptors = append(d.Descriptors, partnertest.Limit("", strconv.Itoa(len(d.GetDescriptors())), 1))
		}
		domains = append(domains, d)
	}
	s.Set("1", append(domains, partnertest.Domain("good", partnertest.Limit("k", "", 1)))...)
	wantAck(t, s, "1")
	got := c.Status()
	text, err := json.Marshal(got)
	if err != nil || len(text) > maxFindings*(maxFinding+100) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if got.FindingCount != 200*50 || got.RefusedDomains != 200 || len(got.Findings) != maxFindings {
		t.Errorf("%d findings of %d domains, %d shown", got.FindingCount, got.RefusedDomains, len(got.Findings))
	}
	if n := len(c.log.String()); n > 2*maxDomainFindings*maxFinding {
		t.Errorf("the log has %d bytes", n)
	}
}
