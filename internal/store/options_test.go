package store

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// A stop waits for the store with the longest timeout.
func TestLongestTimeout(t *testing.T) {
	o := &Options{Store: "redis://h?timeout=20ms", StoreTimeout: 15 * time.Millisecond}
	for range 2 {
		want := 20 * time.Millisecond
		if o.NamedStores != nil {
			want = 450 * time.Millisecond
		}
		if got, wait := o.LongestTimeout(), o.MaxWait(); got != want || wait != want {
			t.Errorf("the longest timeout is %s, the longest wait %s, want %s", got, wait, want)
		}
		o.NamedStores = map[string]string{"home": "redis://far?timeout=450ms", "near": "redis://near"}
	}
	if o.StoreTimeout = 0; o.MaxWait() != MaxTimeout {
		t.Errorf("until the caller's deadline, the longest wait is %s, want %s", o.MaxWait(), MaxTimeout)
	}
}

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
		o, err := a.options(t.Context(), &redisstore.Options{Timeout: tc.timeout})
		if err != nil {
			t.Fatal(err)
		}
		if o.ReadTimeout != tc.want {
			t.Errorf("%s with timeout %s: ReadTimeout is %s, want %s", tc.url, tc.timeout, o.ReadTimeout, tc.want)
		}
	}
}
