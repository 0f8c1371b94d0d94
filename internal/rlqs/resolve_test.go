package rlqs

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// noStore decides nothing.
type noStore struct{}

func (noStore) Take(context.Context, []limiter.Hit, []limiter.Decision) error { return nil }

// rulesOf is a resolver by these rules.
func rulesOf(t *testing.T, rules string) (
	resolve func(string, BucketID) Target, live *atomic.Pointer[descriptors.Set],
) {
	t.Helper()
	live = new(atomic.Pointer[descriptors.Set])
	if rules != "" {
		live.Store(casetest.Compile(t, rules))
	}
	d, err := decide.New(decide.Options{Rules: live.Load, Store: noStore{}})
	if err != nil {
		t.Fatal(err)
	}
	return Resolver(live.Load, d), live
}

//go:embed testdata/resolve.yaml
var resolveRules string

func TestResolve(t *testing.T) {
	resolve, _ := rulesOf(t, resolveRules)
	for _, tt := range []struct{ domain, id, want string }{
		{
			"shop", "route=/checkout,tenant=a",
			"funnel:burst|shop|tenant=a|route=/checkout 100, fixed_window:daily|shop|tenant=a|route=/checkout 100000",
		},
		{"shop", "plan=free", "nothing"},
		{"shop", "plan=known", "nothing"},
		{"shop", "plan=over", "fixed_window|shop|plan=over 50"},
		{"shop", "plan=shadow", "shadow fixed_window|shop|plan=shadow 50"},
		{"shop", "plan=nobody", "nothing"},
		{"shop", "tenant=a", "nothing"},
		{"other", "plan=free", "nothing"},
		{"shop", "slow=leased", "funnel|shop|slow=leased 50"},
		{"shop", "slow=queue", "refused: slow=queue (rules.yaml:13): algorithm: leaky_queue cannot be charged in advance"},
		{"shop", "slow=full", "refused: slow=full (rules.yaml:14): charge_denied: "},
		{"shop", "slow=batch", "refused: slow=batch (rules.yaml:15): refill: "},
		{"shop", "slow=empty", "refused: slow=empty (rules.yaml:16): initial: "},
		{"shop", "slow=cell", "refused: slow=cell (rules.yaml:17): engine: redis_cell"},
		{"shop", "slow=work", "refused: slow=work (rules.yaml:18): algorithm: concurrency"},
		{"shop", "", "refused: the bucket has no entries"},
		{"shop", "plan=", "refused: the value of plan is empty"},
		{"shop", "plan=\xff", "refused: a value is not UTF-8"},
		{"shop", "plan=" + strings.Repeat("x", MaxIDBytes), "refused: the entries have 2053 bytes, at most 2048"},
	} {
		if got := targetText(resolve(tt.domain, BucketID(tt.id))); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s %.40s: %q, want %q", tt.domain, tt.id, got, tt.want)
		}
	}
}

func targetText(target Target) string {
	if target.Refused != "" {
		return "refused: " + target.Refused
	}
	var hits []string
	for i := range target.Hits {
		h := &target.Hits[i]
		text := fmt.Sprintf("%s %d", h.Key, h.Policy.Limit())
		if h.N != 0 || h.Peek {
			text += fmt.Sprintf(" with N %d, look %t", h.N, h.Peek)
		}
		hits = append(hits, text)
	}
	if len(target.Limits) != len(target.Hits) {
		return fmt.Sprintf("%d hits, %v", len(target.Hits), target.Limits)
	}
	if len(hits) == 0 {
		return "nothing"
	}
	all := strings.Join(hits, ", ")
	if target.Hits[0].Mode == limiter.Shadow {
		all = "shadow " + all
	}
	return all
}

// Rules count as they are at the moment.
func TestResolveFollowsRules(t *testing.T) {
	resolve, live := rulesOf(t, "")
	want := func(text string) {
		t.Helper()
		if got := targetText(resolve("shop", "plan=over")); got != text {
			t.Errorf("%q, want %q", got, text)
		}
	}
	want("refused: no rules are loaded yet")
	live.Store(casetest.Compile(t, resolveRules))
	before := resolve("shop", "plan=over")
	want("fixed_window|shop|plan=over 50")
	live.Store(casetest.Compile(t, strings.ReplaceAll(resolveRules, "quota_mode: true, rate_limit: {unit: second, requests_per_unit: 50}", "rate_limit: {unit: second, requests_per_unit: 70}")))
	want("fixed_window|shop|plan=over 70")
	if got := targetText(before); got != "fixed_window|shop|plan=over 50" {
		t.Errorf("the target from before is now %s", got)
	}
}
