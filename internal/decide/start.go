package decide

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strconv"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// keyPrefix begins the keys of entries that are for Weir, and match no rule.
const keyPrefix = "weir_"

// StartKey is the key of the entry in which a request's end report returns the token of Verdict.Start.
const StartKey = descriptors.StartKey

// HintKey is the key of the entry with which a request says what it may cost, for limits with a reservation.
const HintKey = descriptors.HintKey

// Bounds of the entries' values, in bytes. A longer value counts as none.
const (
	maxToken = 4096
	maxHint  = 32
)

// Start returns what the end report of the request needs. leased is the number of hits in flight that the request holds
// until its stream ends, for the first limit that counts them. token names the charges of at most maxReserved limits
// with a reservation, then all hits in flight. For a denied request both are zero.
//
//	token = item *(" " item)
//	item  = hash ":" hits "." time  ; of the counter's key; time: TakenAt of the charge's decision
func (v *Verdict) Start() (leased int64, token string) {
	if v.Denied {
		return 0, ""
	}
	items, inFlight := make([]byte, 0, 256), make([]byte, 0, 64) // on the stack, unless the token is longer
	reserved := 0
	for i := range v.Hits {
		h, at := &v.Hits[i], v.Decisions[i].TakenAt
		switch {
		case at == 0 || h.N <= 0 || !v.Counted(i):
		case limit.CountsInFlight(h):
			leased = cmp.Or(leased, h.N)
			inFlight = appendItem(inFlight, h, at)
		case reserved < maxReserved:
			reserved++
			items = appendItem(items, h, at)
		}
	}
	return leased, strings.TrimSuffix(string(append(items, inFlight...)), " ")
}

func appendItem(token []byte, h *limiter.Hit, at int64) []byte {
	token = strconv.AppendInt(appendHash(token, h.Key), h.N, 10)
	return append(strconv.AppendInt(append(token, '.'), at, 10), ' ')
}

// inTokens returns the beginning of a counter's item in a token: a hash of the key, as in the log, and a colon.
func inTokens(key string) string { return string(appendHash(nil, key)) }

func appendHash(token []byte, key string) []byte {
	sum := sha256.Sum256(append(make([]byte, 0, 256), key...)) // on the stack, unless the key is longer
	return append(hex.AppendEncode(token, sum[:8]), ':')
}

// held returns the hits and the time of the token's first item that begins with hash. ok is false if there is no such
// item, or if its numbers are not valid. The token may be any text.
func held(token, hash string) (hits, at int64, ok bool) {
	if len(token) > maxToken {
		return 0, 0, false
	}
	for item := range strings.SplitSeq(token, " ") {
		if own, is := strings.CutPrefix(item, hash); is {
			left, right, _ := strings.Cut(own, ".")
			hits, at = digits(left), digits(right)
			return hits, at, 0 < hits && hits <= limiter.MaxHits && 0 < at && at <= limit.MaxTakenAt
		}
	}
	return 0, 0, false
}

// digits returns the number that text is, or 0 if text is not 1 to 16 digits.
func digits(text string) (n int64) {
	if len(text) > 16 {
		return 0
	}
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0
		}
		n = 10*n + int64(c-'0')
	}
	return n
}

// hinted returns the hits of a hint, rounded up, or 0 if the hint is not a number above 0. The hint may be any text.
func hinted(hint string) int64 {
	if hint == "" || len(hint) > maxHint || strings.Trim(hint, "0123456789+-.eE") != "" {
		return 0
	}
	n, _ := strconv.ParseFloat(hint, 64) // +Inf for a large number, 0 for other errors
	return int64(math.Ceil(min(max(0, n), limiter.MaxHits)))
}

// release makes a hit on requests in flight release those that the token names for its counter. It returns false if
// there are none.
func release(h *limiter.Hit, token string) (ok bool) {
	n, at, ok := held(token, inTokens(h.Key))
	if ok {
		h.N, h.Peek, h.Mode, h.TakenAt = -n, false, limiter.Enforce, at
	}
	return ok
}
