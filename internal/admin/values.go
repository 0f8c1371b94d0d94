package admin

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/boosts"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/topkeys"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// hiddenKey is a counter's key with hashes in place of the values that a client has sent.
func hiddenKey(key string) string {
	terms, ok := descriptors.ParseKey(key)
	if !ok || terms.Cut {
		sum := sha256.Sum256([]byte(key))
		return "#" + hex.EncodeToString(sum[:16])
	}
	entries := make([]descriptors.Entry, len(terms.Entries))
	for i, e := range terms.Entries {
		entries[i] = descriptors.Entry{Key: e.Key, Value: topkeys.Hashed(e.Value)}
	}
	return terms.Algorithm + terms.Limit + "|" + terms.Domain + "|" + descriptors.FormatEntries(entries)
}

// hideKeys is the boosts without the values of their keys.
func hideKeys(list []boosts.Status) []boosts.Status {
	list = slices.Clone(list)
	for i := range list {
		keys := make([]string, len(list[i].Keys))
		for j, key := range list[i].Keys {
			keys[j] = hiddenKey(key)
		}
		if list[i].Keys != nil {
			list[i].Keys = keys
		}
	}
	return list
}

// maxShort is the most bytes of a client's text in the log or in an error.
const maxShort = 100

// shorten makes a client's text fit for the log or an error: bounded, and without control characters.
func shorten(text string) string {
	quoted := strconv.QuoteToGraphic(logging.Shorten(text, maxShort))
	return quoted[1 : len(quoted)-1]
}

const (
	// maxAdded boosts may be made in addedIn: nobody fills all places at once.
	maxAdded = 60
	addedIn  = time.Minute
)

// bucket lets so many pass at once, and then so many a second.
type bucket struct {
	most, rate float64

	mu     sync.Mutex
	tokens float64
	at     time.Time
}

func newBucket(most int, rate float64) *bucket {
	return &bucket{most: float64(most), rate: rate, tokens: float64(most), at: time.Now()}
}

// take says whether one more may pass.
func (b *bucket) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = min(b.most, b.tokens+b.rate*now.Sub(b.at).Seconds())
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
