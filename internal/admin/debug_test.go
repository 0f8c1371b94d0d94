package admin

import "testing"

// A rule has the name that envoyproxy/ratelimit gives it, whatever its keys and values are.
func TestStatName(t *testing.T) {
	for path, want := range map[string]string{
		"": "", "a": "a", "a=b": "a_b", "a=": "a", `a\`: "a", "a\nb=c\nd": "a\nb_c\nd", "a\xffb=\xff": "a\xffb_\xff",
		`a\=x=b=c > d=/x*`: "a=x_b=c.d_/x*", `a\\=b \> c`: `a\_b > c`,
	} {
		if got := statName(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}
