package descriptors_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

func TestParseKey(t *testing.T) {
	entries := func(pairs ...string) (all []descriptors.Entry) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, descriptors.Entry{Key: pairs[i], Value: pairs[i+1]})
		}
		return all
	}
	for _, tt := range []struct {
		key  string
		want descriptors.KeyTerms
	}{
		{"funnel|shop|remote_address=10.0.0.1", descriptors.KeyTerms{
			Algorithm: "funnel", Domain: "shop", Entries: entries("remote_address", "10.0.0.1"),
		}},
		{"funnel|{shop|remote_address=10.0.0.1}", descriptors.KeyTerms{
			Algorithm: "funnel", Domain: "shop", Entries: entries("remote_address", "10.0.0.1"),
		}},
		{"fixed_window:day%401|a%7Cb%20%25|k=x=y|l=", descriptors.KeyTerms{
			Algorithm: "fixed_window", Limit: ":day@1", Domain: "a|b %", Entries: entries("k", "x=y", "l", ""),
		}},
		{"token_bucket.interval#2|shop|k=v", descriptors.KeyTerms{
			Algorithm: "token_bucket.interval", Limit: "#2", Domain: "shop", Entries: entries("k", "v"),
		}},
		{"fixed_window@100/60000000us|shop|k=#2bb80d537b1da3e3", descriptors.KeyTerms{
			Algorithm: "fixed_window", Limit: "@100/60000000us", Domain: "shop", Entries: entries("k", "#2bb80d537b1da3e3"),
		}},
	} {
		got, ok := descriptors.ParseKey(tt.key)
		if diff := cmp.Diff(tt.want, got); diff != "" || !ok {
			t.Errorf("%s: %v (-want +got):\n%s", tt.key, ok, diff)
		}
	}
	for _, key := range []string{"", "rules", "ping", "|shop|k=v", "funnel|shop|k"} {
		if got, ok := descriptors.ParseKey(key); ok {
			t.Errorf("%q is read as %+v", key, got)
		}
	}
}
