package explain

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// RetryAfter is how long to wait until what is denied may pass. In JSON it is a number of seconds, null where no wait
// helps. The zero value stands for what is not denied.
type RetryAfter struct {
	Denied  bool
	Never   bool // no wait helps
	Seconds float64
}

// newRetryAfter is that of a Decision which denies.
func newRetryAfter(d time.Duration) RetryAfter {
	if d == limiter.Never {
		return RetryAfter{Denied: true, Never: true}
	}
	return RetryAfter{Denied: true, Seconds: d.Seconds()}
}

// MarshalJSON implements json.Marshaler.
func (r RetryAfter) MarshalJSON() ([]byte, error) {
	if r.Never {
		return []byte("null"), nil
	}
	return json.Marshal(r.Seconds)
}

// UnmarshalJSON implements json.Unmarshaler. A sidecar of an older release writes -1 for null.
func (r *RetryAfter) UnmarshalJSON(text []byte) error {
	*r = RetryAfter{Denied: true, Never: true}
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	err := json.Unmarshal(text, &r.Seconds)
	if r.Never = r.Seconds < 0; r.Never {
		r.Seconds = 0
	}
	return err
}
