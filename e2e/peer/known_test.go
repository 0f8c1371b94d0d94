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

// known is a difference that stays: a row of the table in docs/migrating/envoyproxy-ratelimit.md.
type known struct {
	name     string // the row's first column
	rules    string // of a domain
	settings env
	steps    []knownStep

	// hides reports whether it is the reason of a difference in a random case; nil: no random case has it.
	hides func(diff string, peer, weir *pb.RateLimitResponse, settings env) bool
}

// knownStep is a request, in short, and what each answers, in short. Where they differ for one step at least, the
// difference still is one.
type knownStep struct{ ask, peer, weir string }

// knownDifferences are all that stay in answers.
var knownDifferences = []known{
	{
		name:  "keys and values with `_`",
		rules: "[{key: a, value: b_c, rate_limit: {unit: day, requests_per_unit: 5}}]",
		steps: []knownStep{{"a_b=c", "OK - OK 4/5 DAY", "OK - OK"}},
	},
	{
		name:  "a pattern and longer keys",
		rules: `[{key: user, value: "*", rate_limit: {unit: day, requests_per_unit: 5}}]`,
		steps: []knownStep{{"user_id=5", "OK - OK 4/5 DAY", "OK - OK"}},
	},
	{
		name:  "`*` before the end of a value",
		rules: `[{key: path, value: "/a/*/b", rate_limit: {unit: day, requests_per_unit: 5}}]`,
		steps: []knownStep{{"path=/a/1/b", "OK - OK", "OK - OK 4/5 DAY"}},
	},
	{
		name: "a value that reads like a pattern",
		rules: `[{key: a, value: "*", rate_limit: {unit: day, requests_per_unit: 5}},
  {key: a, value: "x*", rate_limit: {unit: day, requests_per_unit: 7}}]`,
		steps: []knownStep{{"a=x1", "OK - OK 4/5 DAY", "OK - OK 4/5 DAY"}, {"a=x*", "OK - OK 6/7 DAY", "OK - OK 4/5 DAY"}},
	},
	{
		name:  "every quota is exceeded",
		rules: "[{key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}]",
		steps: []knownStep{
			{"a=1", "OK - OK 0/1 DAY", "OK - OK 0/1 DAY"},
			{"a=1", "OK - OK 0/1 DAY", "OVER_LIMIT - OVER_LIMIT 0/1 DAY"},
		},
		hides: onlyQuotasDeny,
	},
	{
		name: "the status of an exceeded quota",
		rules: `[{key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 0}},
  {key: b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}]`,
		steps: []knownStep{{"a=1 b=1", "OK - OK 0/0 DAY - OK 0/1 DAY", "OK - OVER_LIMIT 0/0 DAY - OK 0/1 DAY"}},
		hides: func(diff string, peer, _ *pb.RateLimitResponse, _ env) bool {
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
	},
	{
		name: "a request's own limit on a rule with a mode, a name or a shared counter",
		rules: `[{key: s, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5, name: n}},
  {key: t, value: "x*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}]`,
		steps: []knownStep{
			{"s=1@0/DAY", "OVER_LIMIT - OVER_LIMIT 0/0 DAY", "OK - OK 0/0 n"},
			{"t=x1@3/DAY", "OK - OK 2/3 DAY", "OK - OK 2/3 DAY"},
			{"t=x2@3/DAY", "OK - OK 2/3 DAY", "OK - OK 1/3 DAY"},
		},
	},
	{
		name:     "the statuses of SHADOW_MODE",
		settings: env{"SHADOW_MODE": "true", "LIMIT_RESPONSE_HEADERS_ENABLED": "true"},
		rules: `[{key: a, rate_limit: {unit: day, requests_per_unit: 0}},
  {key: b, rate_limit: {unit: day, requests_per_unit: 1}}]`,
		steps: []knownStep{{
			"a=1 b=1+2", "OK - OVER_LIMIT 0/0 DAY - OVER_LIMIT 0/1 DAY RateLimit-Limit=1 RateLimit-Remaining=0",
			"OK - OK 0/0 DAY - OK 0/1 DAY RateLimit-Limit=0 RateLimit-Remaining=0",
		}},
		hides: func(diff string, peer, weir *pb.RateLimitResponse, settings env) bool {
			inHeader := settings["SHADOW_MODE"] == "true" && strings.Contains(diff, "RateLimit-") // of the last that is over
			return peer.GetOverallCode() == weir.GetOverallCode() && (strings.HasSuffix(diff, ".code: OVER_LIMIT, OK") || inHeader)
		},
	},
	{
		name:     "a request's own limit, larger than an exceeded one, with a local cache",
		settings: env{"LOCAL_CACHE_SIZE_IN_BYTES": "100000"},
		rules:    "[{key: a, rate_limit: {unit: day, requests_per_unit: 0}}]",
		steps: []knownStep{
			{"a=1", "OVER_LIMIT - OVER_LIMIT 0/0 DAY", "OVER_LIMIT - OVER_LIMIT 0/0 DAY"},
			{"a=1@9/DAY", "OVER_LIMIT - OVER_LIMIT 0/9 DAY", "OK - OK 7/9 DAY"},
		},
	},
	{
		name:     "what a denied request charges, with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
		settings: env{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "true"},
		rules: `[{key: none, rate_limit: {unit: day, requests_per_unit: 0}},
  {key: s, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5}},
  {key: a, rate_limit: {unit: day, requests_per_unit: 1}}]`,
		steps: []knownStep{
			{"none=1 s=1", "OVER_LIMIT - OVER_LIMIT 0/0 DAY - OK 5/5 DAY", "OVER_LIMIT - OVER_LIMIT 0/0 DAY - OK 4/5 DAY"},
			{"a=1 a=1", "OVER_LIMIT - OK 0/1 DAY - OVER_LIMIT 0/1 DAY", "OVER_LIMIT - OK 1/1 DAY - OVER_LIMIT 0/1 DAY"},
		},
	},
	{
		name: "what a denied request charges, with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
		settings: env{
			"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "true", "LOCAL_CACHE_SIZE_IN_BYTES": "100000",
		},
		rules: `[{key: none, rate_limit: {unit: day, requests_per_unit: 0}},
  {key: a, rate_limit: {unit: day, requests_per_unit: 1}}]`,
		steps: []knownStep{
			{"none=1", "OVER_LIMIT - OVER_LIMIT 0/0 DAY", "OVER_LIMIT - OVER_LIMIT 0/0 DAY"},
			{"none=1 a=1+2", "OVER_LIMIT - OVER_LIMIT 0/0 DAY - OK 1/1 DAY", "OVER_LIMIT - OVER_LIMIT 0/0 DAY - OVER_LIMIT 0/1 DAY"},
		},
	},
	{
		name:     "the text of a request's own limit in dynamic metadata",
		settings: env{"RESPONSE_DYNAMIC_METADATA": "true"},
		rules:    "[{key: a, rate_limit: {unit: day, requests_per_unit: 5}}]",
		steps:    []knownStep{{"a=1@3/DAY", "OK - OK 2/3 DAY", "OK - OK 2/3 DAY"}},
		hides: func(diff string, peer, weir *pb.RateLimitResponse, _ env) bool {
			const field = "descriptors"
			p := proto.CloneOf(peer.GetDynamicMetadata()).GetFields()[field]
			for _, d := range p.GetListValue().GetValues() {
				delete(d.GetStructValue().GetFields(), "limit")
			}
			return kind(diff) == "dynamic_metadata."+field && proto.Equal(p, weir.GetDynamicMetadata().GetFields()[field])
		},
	},
	{
		name:     "the RateLimit headers while 4294967295 remain",
		settings: env{"LIMIT_RESPONSE_HEADERS_ENABLED": "true"},
		rules:    "[{key: a, rate_limit: {unit: day, requests_per_unit: 4294967295}}]",
		steps: []knownStep{{
			"a=1+0", "OK - OK 4294967295/4294967295 DAY",
			"OK - OK 4294967295/4294967295 DAY RateLimit-Limit=4294967295 RateLimit-Remaining=4294967295",
		}},
		hides: func(diff string, peer, weir *pb.RateLimitResponse, _ env) bool {
			return diff == "response_headers_to_add: number: 0, 3" && peer.GetOverallCode() == weir.GetOverallCode()
		},
	},
	{
		name:     "more dynamic metadata",
		settings: env{"RESPONSE_DYNAMIC_METADATA": "true"},
		rules:    "[{key: a, rate_limit: {unit: day, requests_per_unit: 0}}]",
		steps:    []knownStep{{"a=1", "OVER_LIMIT - OVER_LIMIT 0/0 DAY", "OVER_LIMIT - OVER_LIMIT 0/0 DAY"}},
		hides: func(diff string, _, _ *pb.RateLimitResponse, _ env) bool {
			return strings.HasPrefix(diff, "dynamic_metadata.violations: {nothing}")
		},
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
		return slices.ContainsFunc(knownDifferences, func(k known) bool {
			return k.hides != nil && k.hides(diff, peer.resp, weir.resp, settings)
		})
	})
}

// TestKnownDifferences holds both to the differences that docs/migrating/envoyproxy-ratelimit.md lists, and the list to
// what differs.
func TestKnownDifferences(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i, k := range knownDifferences {
		files[fmt.Sprintf("%d.yaml", i)] = fmt.Sprintf("domain: domain%d\ndescriptors: %s\n", i, k.rules)
	}
	root := writeRules(t, files)
	pairs := map[string]*pair{}
	for i, k := range knownDifferences {
		awaitWindow(3600)
		id := fmt.Sprint(k.settings)
		if pairs[id] == nil {
			pairs[id] = startPair(t, root, k.settings)
		}
		differ := false
		for j, step := range k.steps {
			req := request(t, fmt.Sprintf("domain%d", i), step.ask)
			peer, weir := pairs[id].peer.ask(t.Context(), req), pairs[id].weir.ask(t.Context(), req)
			if peer.short() != step.peer || weir.short() != step.weir {
				t.Errorf("%s, request %d, %s:\npeer: %s\nwant: %s\nweir: %s\nwant: %s", k.name, j, step.ask,
					peer.short(), step.peer, weir.short(), step.weir)
			}
			differ = differ || len(differences(peer, weir)) > 0
		}
		if !differ {
			t.Errorf("%s: they differ no longer: remove it here and from docs/migrating/envoyproxy-ratelimit.md", k.name)
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
	held := append(slices.Clone(notHere), slices.Collect(maps.Keys(knownMetrics))...)
	for _, k := range knownDifferences {
		held = append(held, k.name)
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
		req := request(t, "a", step.ask)
		if peer, weir := p.peer.ask(t.Context(), req).short(), p.weir.ask(t.Context(), req).short(); peer != step.peer ||
			weir != step.weir {
			t.Errorf("%s: peer %s, want %s; Weir %s, want %s", step.ask, peer, step.peer, weir, step.weir)
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
