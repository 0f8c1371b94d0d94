package actions_test

import (
	"strings"
	"testing"
)

// TestRefused has what is wrong or not supported, with its place and what to write instead.
func TestRefused(t *testing.T) {
	action := func(text string) string { return "[{actions: [{remote_address: {}}, {" + text + "}]}]" }
	limit := func(text string) string { return "[{actions: [{remote_address: {}}], " + text + "}]" }
	for text, want := range map[string]string{
		// What Envoy's own bounds refuse.
		"[{}, {actions: [{}]}]":                       "rate_limits[0].actions: value must contain at least 1 item(s)",
		"[{actions: [{}]}]":                           "rate_limits[0].actions[0].action_specifier: value is required",
		action("generic_key: {descriptor_value: ''}"): "actions[1].generic_key.descriptor_value: value length must be at least 1 runes",
		action("header_value_match: {descriptor_value: a, headers: [{name: x, string_match: {}}]}"): "actions[1].header_value_match.headers[0].string_match.match_pattern: value is required",

		action("header_value_match: {descriptor_value: a, headers: [{name: x, string_match: {safe_regex: {regex: '('}}}]}"):                   "headers[0].string_match.safe_regex.regex: error parsing regexp: missing closing ): `(`",
		action("header_value_match: {descriptor_value: a, headers: [{name: x, string_match: {safe_regex: {regex: ')('}}}]}"):                  "headers[0].string_match.safe_regex.regex: error parsing regexp: unexpected ): `)(`",
		action("header_value_match: {descriptor_value: a, headers: [{name: x, string_match: {safe_regex: {regex: a}, ignore_case: true}}]}"):  "headers[0].string_match.ignore_case: has no effect with safe_regex; begin the regex with (?i)",
		action("header_value_match: {descriptor_value: a, headers: [{name: x, string_match: {safe_regex: {regex: '(?i)é'}}}]}"):               "safe_regex.regex: (?i) with letters that are not ASCII is not supported: list both cases of each letter",
		action("query_parameter_value_match: {descriptor_value: a, query_parameters: [{name: x, string_match: {safe_regex: {regex: '*'}}}]}"): "query_parameters[0].string_match.safe_regex.regex: error parsing regexp",

		// What Weir does not follow.
		action("header_value_match: {descriptor_value: a, headers: [{name: x, exact_match: a}]}"):     "rate_limits[0].actions[1].header_value_match.headers[0]: exact_match is not supported: write string_match",
		action("generic_key: {descriptor_value: 'a%REQ(x-user)%'}"):                                   "actions[1].generic_key.descriptor_value: a substitution format is not supported: Envoy applies it only with a runtime flag",
		action("header_value_match: {descriptor_value: '%PROTOCOL%', headers: [{name: x}]}"):          "actions[1].header_value_match.descriptor_value: a substitution format is not supported",
		action("dynamic_metadata: {descriptor_key: a, metadata_key: {key: b, path: [{key: c}]}}"):     "rate_limits[0].actions[1]: dynamic_metadata is not supported: Envoy no longer accepts it either; write metadata instead",
		action("metadata: {descriptor_key: a, metadata_key: {key: b, path: [{key: c}, {index: 0}]}}"): "actions[1].metadata.metadata_key.path[1].index: an element of a list is not supported: Weir reads values by their keys alone",

		action("remote_address_match: {descriptor_value: a, address_matcher: {ranges: [{address_prefix: '::'}]}}"): "rate_limits[0].actions[1]: remote_address_match is not supported: write remote_address, and the networks as cidr in the rules",

		limit("stage: 1"):        "rate_limits[0].stage: stage 1 is not supported: every entry applies at once; leave stage out",
		limit("disable_key: a"):  "rate_limits[0].disable_key: a runtime key is not supported: Weir does not read Envoy's runtime; leave disable_key out",
		limit("hits_addend: {}"): "rate_limits[0].hits_addend: must have either a number or a format",

		limit("hits_addend: {number: 1, format: '%REQ(a)%'}"):                            "rate_limits[0].hits_addend: must have either a number or a format",
		limit("hits_addend: {format: 'a'}"):                                              `rate_limits[0].hits_addend.format: value does not have prefix "%"`,
		limit("hits_addend: {format: '%REQ(a)%%REQ(b)%'}"):                               "rate_limits[0].hits_addend.format: must be a single command, such as %REQ(x-cost)%",
		limit("hits_addend: {format: '%%'}"):                                             "rate_limits[0].hits_addend.format: must be a single command, such as %REQ(x-cost)%",
		limit("hits_addend: {format: '%BYTES_RECEIVED%'}"):                               "rate_limits[0].hits_addend.format: %BYTES_RECEIVED%: is not supported: Weir knows REQ, RESP and DYNAMIC_METADATA",
		limit("hits_addend: {format: '%REQ(a?b?c)%'}"):                                   "hits_addend.format: %REQ%: must name one header, or two with ? between them: %REQ(x-user?x-api-key)%",
		limit("hits_addend: {format: '%REQ(a):99999999999999999999%'}"):                  "hits_addend.format: %REQ%: length 99999999999999999999: must be at most 9223372036854775807",
		limit("hits_addend: {format: '%DYNAMIC_METADATA(a)%'}"):                          "hits_addend.format: %DYNAMIC_METADATA%: must name a namespace and keys: %DYNAMIC_METADATA(NAMESPACE:KEY)%",
		limit("limit: {rate_limit: {requests_per_unit: 1}}"):                             "rate_limits[0].limit.rate_limit.unit: must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR, got UNKNOWN",
		limit("limit: {dynamic_metadata: {metadata_key: {key: a, path: [{index: 1}]}}}"): "rate_limits[0].limit: dynamic_metadata is not supported: Envoy gives modules no nested values; use rate_limit",
	} {
		refused(t, toJSON(t, text), want)
	}
}

// refused checks the error about a text in JSON.
func refused(t *testing.T, text, want string) {
	t.Helper()
	shown := text[:min(len(text), 200)]
	switch _, err := parse([]byte(text)); {
	case err == nil:
		t.Errorf("%s\nis accepted, want: %s", shown, want)
	case !strings.Contains(err.Error(), want):
		t.Errorf("%s\nerror: %v\n want: %s", shown, err, want)
	case !strings.HasPrefix(err.Error(), "rate_limits"):
		t.Errorf("%s\nerror without its place: %v", shown, err)
	}
}
