package embedded

import "testing"

// The headers are of the limit with the least left. They list all limits of the request, but those whose window is no
// unit, and those that their entry of rate_limits turns off.
func TestXRateLimitHeaders(t *testing.T) {
	rules := flagOf(t, `
domain: shop
descriptors:
  - {key: wide, rate_limit: {name: per-key, unit: year, requests_per_unit: 100}}
  - {key: narrow, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: odd, rate_limit: {window: 1500ms, requests_per_unit: 70}}
  - {key: hidden, rate_limit: {unit: year, requests_per_unit: 50}}
`)
	f := newTestFilter(t, newModule(t), []byte(`{
		"domain": "shop", "flags": ["`+rules+`"],
		"enable_x_ratelimit_headers": "DRAFT_VERSION_03", "disable_x_envoy_ratelimited_header": true,
		"rate_limits": [
			{"actions": [{"request_headers": {"header_name": "x-key", "descriptor_key": "wide"}}]},
			{"actions": [{"request_headers": {"header_name": "x-key", "descriptor_key": "narrow"}}]},
			{"actions": [{"request_headers": {"header_name": "x-key", "descriptor_key": "odd"}}]},
			{"actions": [{"request_headers": {"header_name": "x-key", "descriptor_key": "hidden"}}],
				"x_ratelimit_option": "OFF"}
		]}`))
	for _, remaining := range []string{"2", "1", "0", "0"} {
		a, _ := ask(t.Context(), f, nil, "ann")
		if got, want := header(a, "x-ratelimit-limit"), `3, 100;w=31536000;name="per-key", 3;w=31536000`; got != want {
			t.Errorf("x-ratelimit-limit is %s, want %s", got, want)
		}
		if got := header(a, "x-ratelimit-remaining"); got != remaining {
			t.Errorf("%s remain, want %s", got, remaining)
		}
		if header(a, "x-ratelimit-reset") == "" || header(a, "x-envoy-ratelimited") != "" {
			t.Errorf("headers %+v", a.Headers)
		}
	}
}
