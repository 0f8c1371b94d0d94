package rls

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/decide"
)

// lines is a Watcher that writes down what it sees, one line a request.
type lines []string

func (ls *lines) Watch(_ context.Context, v *decide.Verdict) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s denied=%t failed=%t", v.Request.Domain, v.Denied, v.Failed())
	for i := range v.Request.Descriptors {
		fmt.Fprintf(&b, " | %v", v.Request.Descriptors[i].Entries)
		if r := v.Statuses[i].Rule; r != nil {
			b.WriteString(" " + r.Path)
		}
	}
	for i, l := range v.Limits {
		h := &v.Hits[i]
		fmt.Fprintf(&b, " ; %s %d of %d: %s, %d left", l.Rule.Path, h.N, h.Group, v.Outcome(i), v.Decisions[i].Remaining)
	}
	*ls = append(*ls, b.String())
}

func TestWatcherSeesWholeRequests(t *testing.T) {
	const rules = `
domain: shop
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: path, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
`
	var seen lines
	s, _ := service(t, rules, func(o *options) { o.Watchers = []decide.Watcher{&seen} })
	for range 2 {
		ask(t, s, request(costing(3, descriptor("user=ann")), descriptor("path=/"), descriptor("none=x")))
	}
	want := lines{
		"shop denied=false failed=false | [{user ann}] user | [{path /}] path | [{none x}]" +
			" ; user 3 of 0: allowed, 2 left ; path 1 of 1: shadow_denied, 0 left",
		"shop denied=true failed=false | [{user ann}] user | [{path /}] path | [{none x}]" +
			" ; user 3 of 0: denied, 0 left ; path 1 of 1: shadow_denied, 0 left",
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
}
