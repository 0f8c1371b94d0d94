package descriptors_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

func TestEntries(t *testing.T) {
	for text, want := range map[string][]descriptors.Entry{
		"a=b":               {{Key: "a", Value: "b"}},
		"a=b,c=d":           {{Key: "a", Value: "b"}, {Key: "c", Value: "d"}},
		"a=":                {{Key: "a"}},
		"a=b=c":             {{Key: "a", Value: "b=c"}},
		`a=b\,c,d=\\,e=\x`:  {{Key: "a", Value: "b,c"}, {Key: "d", Value: `\`}, {Key: "e", Value: `\x`}},
		"path=/a b?c&d,e=é": {{Key: "path", Value: "/a b?c&d"}, {Key: "e", Value: "é"}},
	} {
		got, err := descriptors.ParseEntries(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", text, diff)
		}
		again, err := descriptors.ParseEntries(descriptors.FormatEntries(got))
		if diff := cmp.Diff(got, again); diff != "" || err != nil {
			t.Errorf("%s written and read again: %v (-want +got)\n%s", text, err, diff)
		}
	}
	for text, want := range map[string]string{
		"":      "a descriptor is missing; write key=value,key=value",
		"=b":    "entry 1 has no key",
		"a":     "entry 1, a, has no =; write a=VALUE, or a= for an empty value",
		"a=b,c": "entry 2, c, has no =; write c=VALUE, or c= for an empty value",
		"a=b,":  "entry 2 has no key",
		"a=b,,": `entry 2 has no key; write key=value,key=value, and \, for a comma in a value`,
	} {
		if _, err := descriptors.ParseEntries(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}
