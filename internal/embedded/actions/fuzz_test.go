package actions_test

import "testing"

// FuzzPlan reads any text, and lets what it accepts make descriptors of any path and header: nothing may panic.
func FuzzPlan(f *testing.F) {
	for _, text := range []string{
		"[]", "[{actions: [{remote_address: {}}]}]", "- actions:\n  - generic_key: {descriptor_value: é}",
		`[{"actions": [{"request_headers": {"header_name": "X", "descriptor_key": "k"}}], "hits_addend": {"format": "%REQ(x):2%"}}]`,
		`[{actions: [{query_parameter_value_match: {descriptor_value: a, query_parameters: [{name: q, string_match: {contains: A, ignore_case: true}}]}}]}]`,
		`[{actions: [{query_parameters: {query_parameter_name: q, descriptor_key: k}}], limit: {rate_limit: {requests_per_unit: 1, unit: DAY}}}]`,
		`[{actions: [{header_value_match: {descriptor_value: a, headers: [{name: x, range_match: {start: 1, end: 5}}, {name: x, string_match: {safe_regex: {regex: "[^é]*"}}}]}}]}]`,
		`[{actions: [{metadata: {descriptor_key: a, metadata_key: {key: b, path: [{key: c}]}, default_value: d}}], apply_on_stream_done: true}]`,
		`[{actions: [{masked_remote_address: {v4_prefix_mask_len: 8}}], limit: {dynamic_metadata: {metadata_key: {key: a, path: [{key: b}]}}}}]`,
	} {
		f.Add([]byte(toJSON(f, text)), "/a?q=%41&%zz=%", "1\xff")
	}
	f.Fuzz(func(t *testing.T, text []byte, path, value string) {
		p, err := parse(text)
		if err != nil {
			if p != nil {
				t.Fatalf("a plan and an error: %v", err)
			}
			return
		}
		req := &request{addr: "::ffff:10.1.2.3"}
		for _, name := range p.OnRequest().Headers {
			if name == ":path" {
				req.headers = append(req.headers, [2]string{name, path})
			} else {
				req.headers = append(req.headers, [2]string{name, value}, [2]string{name, path})
			}
		}
		show(p.OnStreamDone().Descriptors(req.of(p), req.descriptors(p)))
	})
}
