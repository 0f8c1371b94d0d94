package actions_test

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// match is a single match of the header x-a or of the query parameter q, and whether a request has it.
type match struct {
	Header, Query *string  // what the match says, in YAML
	Path          string   // of the request, below /
	Values        []string // of the header x-a
	Want          bool
}

func matches(tb testing.TB) []match {
	tb.Helper()
	return casetest.Table[match](tb, "testdata/matches.yaml")
}

// action returns the action that makes an entry only of a request that matches.
func (m match) action() string {
	if m.Query != nil {
		return `query_parameter_value_match: {descriptor_value: yes, query_parameters: [{name: q, ` + *m.Query + `}]}`
	}
	return `header_value_match: {descriptor_value: yes, headers: [{name: x-a, ` + *m.Header + `}]}`
}

func (m match) headers() (all [][2]string) {
	for _, v := range m.Values {
		all = append(all, [2]string{"x-a", v})
	}
	return all
}

func TestMatches(t *testing.T) {
	for _, tt := range matches(t) {
		p := mustParse(t, "[{actions: [{"+tt.action()+"}]}]")
		req := &request{headers: append([][2]string{{":path", "/" + tt.Path}}, tt.headers()...)}
		if got := len(req.descriptors(p)) == 1; got != tt.Want {
			t.Errorf("%s\n/%s %+q matches: %t, want %t", tt.action(), tt.Path, tt.Values, got, tt.Want)
		}
	}
}
