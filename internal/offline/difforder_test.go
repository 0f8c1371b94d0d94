package offline

import "testing"

func TestOverlap(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"/a*", "*b", true},
		{"/a*", "/b*", false},
		{"*.jpg", "*.png", false},
		{"a*c", "ab*", true},
		{"a*c*", "*d", true},
		{"x*y", "x*z", false},
		{"a*b", "b*a", false},
		{"*", "anything*", true},
	} {
		if got, back := overlap(tt.a, tt.b), overlap(tt.b, tt.a); got != tt.want || back != tt.want {
			t.Errorf("%s and %s: %t, %t, want %t", tt.a, tt.b, got, back, tt.want)
		}
	}
}
