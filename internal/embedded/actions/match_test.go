package actions_test

import "testing"

// matches are single matches, and whether a request has them. TestEnvoyMakesTheSameDescriptors asks Envoy as well.
var matches = []struct {
	action  string // that makes an entry only of a request that matches
	path    string // of the request, below /
	headers [][2]string
	want    bool
}{
	{headerMatch(`present_match: true`), "", [][2]string{{"x-a", ""}}, true},
	{headerMatch(`present_match: false`), "", nil, true},
	{headerMatch(`present_match: false, invert_match: true`), "", nil, false},
	{headerMatch(`present_match: false, treat_missing_header_as_empty: true`), "", nil, false},
	{headerMatch(``), "", nil, false},
	{headerMatch(`string_match: {exact: b}, invert_match: true`), "", nil, false},
	{headerMatch(`string_match: {exact: b}, invert_match: true`), "", [][2]string{{"x-a", "c"}, {"x-a", "b"}}, false},
	{headerMatch(`string_match: {exact: b}, invert_match: true`), "", [][2]string{{"x-a", "c"}, {"x-a", "d"}}, true},
	{headerMatch(`string_match: {exact: b}, invert_match: true, treat_missing_header_as_empty: true`), "", nil, true},
	{headerMatch(`string_match: {exact: b}`), "", [][2]string{{"x-a", "c"}, {"x-a", "b"}}, true},
	{headerMatch(`string_match: {exact: "c,b"}`), "", [][2]string{{"x-a", "c"}, {"x-a", "b"}}, false},
	{headerMatch(`string_match: {exact: É, ignore_case: true}`), "", [][2]string{{"x-a", "é"}}, false},
	{headerMatch(`string_match: {exact: BC, ignore_case: true}`), "", [][2]string{{"x-a", "bC"}}, true},
	{headerMatch(`string_match: {prefix: BC, ignore_case: true}`), "", [][2]string{{"x-a", "bcd"}}, true},
	{headerMatch(`string_match: {suffix: BC, ignore_case: true}`), "", [][2]string{{"x-a", "abc"}}, true},
	{headerMatch(`string_match: {contains: BC, ignore_case: true}`), "", [][2]string{{"x-a", "aBcd"}}, true},
	{headerMatch(`range_match: {start: -5, end: 7}`), "", [][2]string{{"x-a", "-5"}}, true},
	{headerMatch(`range_match: {start: -5, end: 7}`), "", [][2]string{{"x-a", "7"}}, false},
	{headerMatch(`range_match: {start: -5, end: 7}`), "", [][2]string{{"x-a", "+6"}}, true},
	{headerMatch(`range_match: {start: -5, end: 7}`), "", [][2]string{{"x-a", "0x1"}}, false},
	{headerMatch(`range_match: {start: -5, end: 7}`), "", [][2]string{{"x-a", "1_0"}}, false},
	{headerMatch(`string_match: {safe_regex: {regex: a}}`), "", [][2]string{{"x-a", "ab"}}, false},
	{headerMatch(`string_match: {safe_regex: {regex: "a|ab"}}`), "", [][2]string{{"x-a", "ab"}}, true},
	{headerMatch(`string_match: {safe_regex: {regex: "."}}`), "", [][2]string{{"x-a", "é"}}, false},
	{headerMatch(`string_match: {safe_regex: {regex: ".."}}`), "", [][2]string{{"x-a", "é"}}, true},
	{headerMatch(`string_match: {safe_regex: {regex: "é"}}`), "", [][2]string{{"x-a", "é"}}, true},
	{headerMatch(`string_match: {safe_regex: {regex: "[é]"}}`), "", [][2]string{{"x-a", "\xa9"}}, true},
	{headerMatch(`string_match: {safe_regex: {regex: ".b"}}`), "", [][2]string{{"x-a", "\xffb"}}, true},
	{queryMatch(`present_match: true`), "?q", nil, true},
	{queryMatch(`present_match: false`), "?p&q=", nil, false},
	{queryMatch(`present_match: false`), "?p", nil, true},
	{queryMatch(``), "q=1", nil, false},
	{queryMatch(`string_match: {exact: ""}`), "?q", nil, true},
	{queryMatch(`string_match: {exact: ""}`), "", nil, false},
	{queryMatch(`string_match: {exact: a}`), "?q=b&q=a", nil, false},
	{queryMatch(`string_match: {exact: "b=c"}`), "?q=b=c", nil, true},
	{queryMatch(`string_match: {exact: b}`), "?q%3Db", nil, false},
	{queryMatch(`string_match: {exact: b}`), "?%71=%62", nil, true},
	{queryMatch(`string_match: {exact: "a+b"}`), "?q=a+b", nil, true},
	{queryMatch(`string_match: {exact: "%4"}`), "?q=%4", nil, true},
	{queryMatch(`string_match: {exact: "%G1%1G"}`), "?q=%G1%1G", nil, true},
	{queryMatch(`string_match: {exact: b}`), "?a?q=b", nil, false},
}

func headerMatch(how string) string {
	if how != "" {
		how = ", " + how
	}
	return `header_value_match: {descriptor_value: yes, headers: [{name: x-a` + how + `}]}`
}

func queryMatch(how string) string {
	if how != "" {
		how = ", " + how
	}
	return `query_parameter_value_match: {descriptor_value: yes, query_parameters: [{name: q` + how + `}]}`
}

func TestMatches(t *testing.T) {
	for _, tt := range matches {
		p := mustParse(t, "[{actions: [{"+tt.action+"}]}]")
		req := &request{headers: append([][2]string{{":path", "/" + tt.path}}, tt.headers...)}
		if got := len(req.descriptors(p)) == 1; got != tt.want {
			t.Errorf("%s\n/%s %+q matches: %t, want %t", tt.action, tt.path, tt.headers, got, tt.want)
		}
	}
}
