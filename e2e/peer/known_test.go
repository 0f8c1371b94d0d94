//go:build e2e

package peer

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// known is a difference that stays.
type known struct {
	Name     string // the row's first column
	Rules    string // of a domain
	Settings env
	Steps    []knownStep
}

type knownStep struct{ Ask, Peer, Weir string }

func knownDifferences(t *testing.T) []known { return casetest.Table[known](t, "testdata/known.yaml") }

// hides has the known differences that random cases have: it reports whether that is the reason of a difference.
var hides = map[string]func(diff string, peer, weir *pb.RateLimitResponse, settings env) bool{
	"every quota is exceeded": onlyQuotasDeny,
	"the status of an exceeded quota": func(diff string, peer, _ *pb.RateLimitResponse, _ env) bool {
		for i := range peer.GetStatuses() {
			rest, ok := strings.CutPrefix(diff, fmt.Sprintf("statuses[%d].", i))
			inStatus := ok && (strings.HasPrefix(rest, "code") || strings.Contains(rest, "duration_until_reset"))
			inHeader := strings.Contains(diff, "RateLimit-") // which show what is over, before what is nearest
			if isExceededQuota(peer, i) && (inStatus || inHeader) {
				return true
			}
		}
		return false
	},
	"the statuses of SHADOW_MODE": func(diff string, peer, weir *pb.RateLimitResponse, settings env) bool {
		inHeader := settings["SHADOW_MODE"] == "true" && strings.Contains(diff, "RateLimit-") // of the last that is over
		inStatus := strings.HasSuffix(diff, ".code: OVER_LIMIT, OK")
		return peer.GetOverallCode() == weir.GetOverallCode() && (inStatus || inHeader)
	},
	"the text of a request's own limit in dynamic metadata": func(
		diff string, peer, weir *pb.RateLimitResponse, _ env,
	) bool {
		const field = "descriptors"
		p := proto.CloneOf(peer.GetDynamicMetadata()).GetFields()[field]
		for _, d := range p.GetListValue().GetValues() {
			delete(d.GetStructValue().GetFields(), "limit")
		}
		return kind(diff) == "dynamic_metadata."+field && proto.Equal(p, weir.GetDynamicMetadata().GetFields()[field])
	},
	"the RateLimit headers while 4294967295 remain": func(diff string, peer, weir *pb.RateLimitResponse, _ env) bool {
		return diff == "response_headers_to_add: number: 0, 3" && peer.GetOverallCode() == weir.GetOverallCode()
	},
	"more dynamic metadata": func(diff string, _, _ *pb.RateLimitResponse, _ env) bool {
		return strings.HasPrefix(diff, "dynamic_metadata.violations: {nothing}")
	},
}

// isExceededQuota reports whether a status of the peer is an exceeded quota: only such a status has a limit and no end
// of its window.
func isExceededQuota(peer *pb.RateLimitResponse, i int) bool {
	s := peer.GetStatuses()[i]
	return s.GetCurrentLimit() != nil && s.GetDurationUntilReset() == nil
}

// onlyQuotasDeny reports whether the peer lets a request pass because it exceeds nothing but quotas, and Weir denies it
// because it exceeds all of its quotas.
func onlyQuotasDeny(diff string, peer, weir *pb.RateLimitResponse, settings env) bool {
	if peer.GetOverallCode() != pb.RateLimitResponse_OK || weir.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT {
		return false
	}
	for i, s := range weir.GetStatuses() {
		if isOver := s.GetCode() == pb.RateLimitResponse_OVER_LIMIT; isOver != isQuota(s, settings) ||
			isOver && !isExceededQuota(peer, i) {
			return false
		}
	}
	return kind(diff) == "overall_code"
}

// isQuota reports whether the status is of a descriptor in quota mode: with QUOTA_MODE of all but unlimited ones.
func isQuota(s *pb.RateLimitResponse_DescriptorStatus, settings env) bool {
	isUnlimited := s.GetCurrentLimit() == nil && s.GetLimitRemaining() > 0
	return s.GetCurrentLimit().GetName() == quotaName || settings["QUOTA_MODE"] == "true" && !isUnlimited
}

// unexplained returns the differences that no known one explains.
func unexplained(diffs []string, peer, weir *answer, settings env) []string {
	return slices.DeleteFunc(diffs, func(diff string) bool {
		for _, isReason := range hides {
			if isReason(diff, peer.resp, weir.resp, settings) {
				return true
			}
		}
		return false
	})
}

// TestKnownDifferences holds both to the differences that docs/migrating/envoyproxy-ratelimit.md lists, and the list to
// what differs.
func TestKnownDifferences(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i, k := range knownDifferences(t) {
		files[fmt.Sprintf("%d.yaml", i)] = fmt.Sprintf("domain: domain%d\ndescriptors: %s\n", i, k.Rules)
	}
	root := writeRules(t, files)
	pairs := map[string]*pair{}
	for i, k := range knownDifferences(t) {
		awaitWindow(3600)
		id := fmt.Sprint(k.Settings)
		if pairs[id] == nil {
			pairs[id] = startPair(t, root, k.Settings)
		}
		differ := false
		for j, step := range k.Steps {
			req := request(t, fmt.Sprintf("domain%d", i), step.Ask)
			peer, weir := pairs[id].peer.ask(t.Context(), req), pairs[id].weir.ask(t.Context(), req)
			if peer.short() != step.Peer || weir.short() != step.Weir {
				t.Errorf("%s, request %d, %s:\npeer: %s\nwant: %s\nweir: %s\nwant: %s", k.Name, j, step.Ask,
					peer.short(), step.Peer, weir.short(), step.Weir)
			}
			differ = differ || len(differences(peer, weir)) > 0
		}
		if !differ {
			t.Errorf("%s: they differ no longer: remove it here and from docs/migrating/envoyproxy-ratelimit.md", k.Name)
		}
	}
}

// notHere are the rows that other tests hold.
var notHere = []string{
	"texts and codes of errors", "a request's own limit with an unknown unit",
	"counters of two units whose windows began at the same second",
}

// TestKnownDifferencesAreListed holds the table of docs/migrating/envoyproxy-ratelimit.md to what these tests hold both
// to.
func TestKnownDifferencesAreListed(t *testing.T) {
	listed := rows(t, "../../docs/migrating/envoyproxy-ratelimit.md", "## What stays different")
	held := slices.Concat(notHere, slices.Collect(maps.Keys(knownMetrics)), slices.Collect(maps.Keys(hides)))
	for _, k := range knownDifferences(t) {
		held = append(held, k.Name)
	}
	for _, name := range listed {
		if !slices.Contains(held, name) {
			t.Errorf("docs/migrating/envoyproxy-ratelimit.md lists %q, which no test holds", name)
		}
	}
	for _, name := range held {
		if !slices.Contains(listed, name) {
			t.Errorf("docs/migrating/envoyproxy-ratelimit.md does not list %q", name)
		}
	}
}

// TestUnitsShareACounter holds the row about counters of two units. It waits for the first second of a minute.
func TestUnitsShareACounter(t *testing.T) {
	if !casetest.IsLong() {
		t.Skip("waits for a minute to begin: make long runs it")
	}
	t.Parallel()
	p := startPair(t, writeRules(t, map[string]string{"a.yaml": "domain: a\ndescriptors: [{key: a}]\n"}), env{})
	now := time.Now().Unix()
	<-time.After(time.Until(time.Unix((now/60+1)*60, 0).Add(50 * time.Millisecond)))
	for _, step := range []knownStep{
		{"a=1@5/MINUTE", "OK - OK 4/5 MINUTE", "OK - OK 4/5 MINUTE"},
		{"a=1@5/SECOND", "OK - OK 3/5 SECOND", "OK - OK 4/5 SECOND"},
	} {
		req := request(t, "a", step.Ask)
		if peer, weir := p.peer.ask(t.Context(), req).short(), p.weir.ask(t.Context(), req).short(); peer != step.Peer ||
			weir != step.Weir {
			t.Errorf("%s: peer %s, want %s; Weir %s, want %s", step.Ask, peer, step.Peer, weir, step.Weir)
		}
	}
}

// TestErrors compares requests that are errors: both fail, with codes of their own. An unknown unit ends the peer.
func TestErrors(t *testing.T) {
	t.Parallel()
	p := startPair(t, writeRules(t, map[string]string{"a.yaml": "domain: a\ndescriptors: [{key: a}]\n"}), env{})
	for _, tt := range []struct{ domain, ask string }{{"", "a=1"}, {"a", ""}} {
		req := request(t, tt.domain, tt.ask)
		peer, weir := p.peer.ask(t.Context(), req), p.weir.ask(t.Context(), req)
		if status.Code(peer.err) != codes.Unknown || status.Code(weir.err) != codes.InvalidArgument {
			t.Errorf("domain %q, %q: peer %v, Weir %v", tt.domain, tt.ask, peer.err, weir.err)
		}
	}
	for _, ask := range []string{"()", "=1", "a=1,=2"} { // no entries, no key
		req := request(t, "a", ask)
		for _, d := range differences(p.peer.ask(t.Context(), req), p.weir.ask(t.Context(), req)) {
			t.Errorf("%s: differ in %s", ask, d)
		}
	}
	unknownUnit := request(t, "a", "a=1@5/NONE")
	if a := p.weir.ask(t.Context(), unknownUnit); status.Code(a.err) != codes.InvalidArgument {
		t.Errorf("own limit with an unknown unit: Weir %s", a)
	}
	p.peer.ask(t.Context(), unknownUnit)
	// Fails the test if the peer lives on: then remove the row from docs/migrating/envoyproxy-ratelimit.md.
	p.peer.Wait(patience)
}

// rows returns the first columns of the table below a heading of a page.
func rows(t *testing.T, page, heading string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no section %s", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var found []string
	for _, m := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllStringSubmatch(section, -1)[1:] {
		found = append(found, m[1])
	}
	return found
}

// differsIn is the name of a field in a difference.
var differsIn = regexp.MustCompile(`^([^:]*): `)

var indexes = regexp.MustCompile(`\[\d+\]`)

// kind returns a difference's field without indexes, to count by.
func kind(diff string) string {
	return indexes.ReplaceAllString(differsIn.FindStringSubmatch(diff)[1], "")
}
