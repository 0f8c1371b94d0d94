package explain

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// In JSON, never is null, as in what get answers; what is not denied has no such field.
func TestRetryAfterInJSON(t *testing.T) {
	for want, retry := range map[string]RetryAfter{
		`{"remaining":0,"retry_after_seconds":null}`: newRetryAfter(limiter.Never),
		`{"remaining":0,"retry_after_seconds":1.5}`:  newRetryAfter(1500 * time.Millisecond),
		`{"remaining":0,"retry_after_seconds":0}`:    newRetryAfter(0),
		`{"remaining":0}`: {},
	} {
		type limit struct {
			Remaining  int        `json:"remaining"`
			RetryAfter RetryAfter `json:"retry_after_seconds,omitzero"`
		}
		text, err := json.Marshal(limit{RetryAfter: retry})
		if err != nil || string(text) != want {
			t.Errorf("%+v is %s, %v; want %s", retry, text, err, want)
		}
		var back limit
		if err := json.Unmarshal([]byte(want), &back); err != nil || back.RetryAfter != retry {
			t.Errorf("%s is read as %+v, %v", want, back.RetryAfter, err)
		}
	}
}
