package decide

import (
	"cmp"
	"context"
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
	for i := range v.Hits {
		h, at := &v.Hits[i], v.Decisions[i].TakenAt
		if at != 0 && !v.Denied && v.Counted(i) {
			leased = cmp.Or(leased, h.N)
			token += fmt.Sprintf("%s%d.%d ", inTokens(h.Key), h.N, at)
		}
	}
	return leased, strings.TrimSpace(token)
}

// inTokens returns what a counter's entry in a token begins with: a hash of the key, as in the log.
func inTokens(key string) string {
	sum := sha256.Sum256([]byte(key))
	return fmt.Sprintf("%x:", sum[:8])
}

// takeBack has a hit that gives back return what the token has of its counter, or nothing.
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

// takesPlaceByItself reports whether a hit takes places although other limits deny the request.
func takesPlaceByItself(h *limiter.Hit) bool {
	return (h.Mode == limiter.Shadow || h.ByItself) && h.TakesPlaces()
}

// TakesPlaces reports whether the request takes places of limits on requests in flight, once it is admitted. It may be
// called after DecideAtOnce has not decided.
func (r *Request) TakesPlaces() bool { return r.verdict.anyHit((*limiter.Hit).TakesPlaces) }

// GiveBackPlaces gives back the places that an admitted request has taken whose end nobody will report: its caller has
// gone. A denied request has none. It asks the store, if there is anything to give back; without an answer the places
// are free at the end of their lease.
func (d *Decider) GiveBackPlaces(ctx context.Context, v *Verdict) error {
	if v.Denied {
		return nil
	}
	return d.giveBack(ctx, v, (*limiter.Hit).TakesPlaces)
}

// anyHit reports whether one of the request's hits is so.
func (v *Verdict) anyHit(is func(*limiter.Hit) bool) bool {
	for i := range v.Hits {
		if is(&v.Hits[i]) {
			return true
		}
	}
	return false
}

// giveBack gives back the places that the wanted hits have taken.
func (d *Decider) giveBack(ctx context.Context, v *Verdict, wanted func(*limiter.Hit) bool) error {
	var hits []limiter.Hit
	for i := range v.Hits {
		if !wanted(&v.Hits[i]) || !v.Decisions[i].Allowed || !v.Counted(i) {
			continue
		}
		h := v.Hits[i]
		h.N, h.Mode, h.TakenAt = -h.N, limiter.Enforce, v.Decisions[i].TakenAt
		if v.Failed() {
			h.Policy = v.Limits[i].Local
		}
		hits = append(hits, h)
	}
	store := d.o.Store
	if v.Failed() {
		store = d.o.Local
	}
	if len(hits) == 0 || store == nil {
		return nil
	}
	return store.Take(ctx, hits, make([]limiter.Decision, len(hits)))
}
