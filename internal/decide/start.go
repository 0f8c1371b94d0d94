package decide

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// StartKey is the key of the entry in which a request's end report returns the token of Verdict.Start.
const StartKey = "weir_start"

// HintKey is the key of the entry with which a request says what it may cost, for limits with a reservation.
const HintKey = "weir_hint"

// Start returns the hits in flight that the request holds until its stream ends: their number for the first limit that
// counts requests in flight, and for the end report a token that names all of them. For a denied request both are zero.
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

// inTokens returns the prefix of a counter's entry in a token: a hash of the key, as in the log.
func inTokens(key string) string {
	sum := sha256.Sum256([]byte(key))
	return fmt.Sprintf("%x:", sum[:8])
}

// takeBack makes a refund of requests in flight release the hits that the token names for its counter, if any.
func takeBack(h *limiter.Hit, token string) {
	if h.N >= 0 || !h.Policy.Algorithm().CountsInFlight() {
		return
	}
	var n, at int64
	_, own, _ := strings.Cut(token, inTokens(h.Key))
	_, _ = fmt.Sscanf(own, "%d.%d", &n, &at)
	h.Mode, h.TakenAt = limiter.Enforce, 1 // a time at which no hit was charged
	if 0 < n && n <= limiter.MaxHits && 0 < at && at < 1<<52 {
		h.N, h.TakenAt = -n, at
	}
}
