package decide

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// StartKey is the key of the entry that brings Verdict.Start of a request to the descriptor of its end.
const StartKey = "weir_start"

// Start returns what the request holds of limits on requests in flight until its stream is done: how many hits of the
// first one, and a token of all for the end. A denied request holds nothing.
func (v *Verdict) Start() (leased int64, token string) {
	var taken []string
	for i := range v.Hits {
		h, at := &v.Hits[i], v.Decisions[i].TakenAt
		if at != 0 && !v.Denied && v.Counted(i) {
			leased = cmp.Or(leased, h.N)
			taken = append(taken, fmt.Sprintf("%s%d.%d", inTokens(h.Key), h.N, at))
		}
	}
	return leased, strings.Join(taken, " ")
}

// inTokens returns what a counter's entry in a token begins with: a hash of the key, as in the log.
func inTokens(key string) string {
	sum := sha256.Sum256([]byte(key))
	return fmt.Sprintf("%x:", sum[:8])
}

// takeBack has a hit that refunds return what the token has of its counter, or nothing.
func takeBack(h *limiter.Hit, token string) {
	if h.N >= 0 || !h.Policy.Algorithm().CountsInFlight() {
		return
	}
	var n, at int64
	_, own, _ := strings.Cut(token, inTokens(h.Key))
	_, _ = fmt.Sscanf(own, "%d.%d", &n, &at)
	h.Mode, h.TakenAt = limiter.Enforce, 1 // nothing was taken then
	if 0 < n && n <= limiter.MaxHits && 0 < at && at < 1<<52 {
		h.N, h.TakenAt = -n, at
	}
}
