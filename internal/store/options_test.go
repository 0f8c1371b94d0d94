package store

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// Late responses of a server are read for a second. A hanging sentinel or node delays the search for the master by 250
// ms, or by the timeout of requests if that is longer.
func TestReadTimeout(t *testing.T) {
	for _, tc := range []struct {
		url           string
		timeout, want time.Duration
	}{
		{"redis://h", 5 * time.Millisecond, redisstore.LateAnswer},
		{"redis://h", 2 * time.Second, 2 * time.Second},
		{"redis+sentinel://h/m", 5 * time.Millisecond, topologyTimeout},
		{"redis+sentinel://h/m", 2 * time.Second, 2 * time.Second},
		{"redis+cluster://h", 5 * time.Millisecond, topologyTimeout},
		{"redis+cluster://h", 2 * time.Second, 2 * time.Second},
	} {
		a, err := parseURL(tc.url)
		if err != nil {
			t.Fatal(err)
		}
		o, err := a.options(&redisstore.Options{Timeout: tc.timeout})
		if err != nil {
			t.Fatal(err)
		}
		if o.ReadTimeout != tc.want {
			t.Errorf("%s with timeout %s: ReadTimeout is %s, want %s", tc.url, tc.timeout, o.ReadTimeout, tc.want)
		}
	}
}
