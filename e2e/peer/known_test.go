package peer

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// known is a difference that stays: a row of the table in docs/migrating.md.
type known struct {
	name     string // the row's first column
	rules    string // of a domain
	settings env
	steps    []knownStep

	// hides reports whether it is the reason of a difference in a random case; nil: no random case has it.
	hides func(diff string, peer, weir *pb.RateLimitResponse) bool
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
		hides: func(diff string, peer, _ *pb.RateLimitResponse) bool {
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
			{"t=x1@3/DAY", "OK - OK 2/3 DAY", "OK - OK 2/3 DAY"}, {"t=x2@3/DAY", "OK - OK 2/3 DAY", "OK - OK 1/3 DAY"},
		},
	},
	{
		name:     "`shadow_mode` and `quota_mode` on one rule",
		settings: env{"RESPONSE_DYNAMIC_METADATA": "true"},
		rules:    "[{key: a, shadow_mode: true, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}]",
		steps:    []knownStep{{"a=1", "OK - OK 0/0 DAY", "OK - OK 0/0 DAY"}},
	},
	{
		name:     "the statuses of SHADOW_MODE",
		settings: env{"SHADOW_MODE": "true"},
		rules:    "[{key: a, rate_limit: {unit: day, requests_per_unit: 0}}]",
		steps:    []knownStep{{"a=1", "OK - OVER_LIMIT 0/0 DAY", "OK - OK 0/0 DAY"}},
		hides: func(diff string, peer, weir *pb.RateLimitResponse) bool {
			return peer.GetOverallCode() == weir.GetOverallCode() && strings.HasSuffix(diff, ".code: OVER_LIMIT, OK")
		},
	},
	{
		name:     "a larger own limit after an exceeded one, with a local cache",
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
		name:     "the text of a request's own limit in dynamic metadata",
		settings: env{"RESPONSE_DYNAMIC_METADATA": "true"},
		rules:    "[{key: a, rate_limit: {unit: day, requests_per_unit: 5}}]",
		steps:    []knownStep{{"a=1@3/DAY", "OK - OK 2/3 DAY", "OK - OK 2/3 DAY"}},
		hides: func(diff string, peer, weir *pb.RateLimitResponse) bool {
			const field = "descriptors"
			p := proto.CloneOf(peer.GetDynamicMetadata()).GetFields()[field]
			for _, d := range p.GetListValue().GetValues() {
				delete(d.GetStructValue().GetFields(), "limit")
			}
			return kind(diff) == "dynamic_metadata."+field && proto.Equal(p, weir.GetDynamicMetadata().GetFields()[field])
		},
	},
	{
		name:     "more dynamic metadata",
		settings: env{"RESPONSE_DYNAMIC_METADATA": "true"},
		rules:    "[{key: a, rate_limit: {unit: day, requests_per_unit: 0}}]",
		steps:    []knownStep{{"a=1", "OVER_LIMIT - OVER_LIMIT 0/0 DAY", "OVER_LIMIT - OVER_LIMIT 0/0 DAY"}},
		hides: func(diff string, _, _ *pb.RateLimitResponse) bool {
			return strings.HasPrefix(diff, "dynamic_metadata.violations: {nothing}")
		},
	},
}

// isExceededQuota reports whether a status of the peer is that of an exceeded quota: only those have a limit and no end of
// its window.
func isExceededQuota(peer *pb.RateLimitResponse, i int) bool {
	s := peer.GetStatuses()[i]
	return s.GetCurrentLimit() != nil && s.GetDurationUntilReset() == nil
}

// onlyQuotasDeny reports whether the peer lets a request pass that exceeds nothing but quotas, and Weir does not.
func onlyQuotasDeny(diff string, peer, weir *pb.RateLimitResponse) bool {
	if peer.GetOverallCode() != pb.RateLimitResponse_OK || weir.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT {
		return false
	}
	for i, s := range weir.GetStatuses() {
		if s.GetCode() == pb.RateLimitResponse_OVER_LIMIT && !isExceededQuota(peer, i) {
			return false
		}
	}
	return kind(diff) == "overall_code"
}

// unexplained returns the differences that no known one explains.
func unexplained(diffs []string, peer, weir *answer) []string {
	return slices.DeleteFunc(diffs, func(diff string) bool {
		return slices.ContainsFunc(knownDifferences, func(k known) bool {
			return k.hides != nil && k.hides(diff, peer.resp, weir.resp)
		})
	})
}

// TestKnownDifferences holds both to the differences that docs/migrating.md lists, and the list to what differs.
func TestKnownDifferences(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i, k := range knownDifferences {
		files[fmt.Sprintf("%d.yaml", i)] = fmt.Sprintf("domain: domain%d\ndescriptors: %s\n", i, k.rules)
	}
	root := writeRules(t, files)
	pairs := map[string]*pair{}
	awaitWindow(3600)
	for i, k := range knownDifferences {
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
			t.Errorf("%s: they differ no longer: remove it here and from docs/migrating.md", k.name)
		}
	}
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
