package topkeys

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"regexp"
	"slices"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// ErrBy is the error for an invalid order.
var ErrBy = errors.New("by: must be hits or denied")

// Query selects keys.
type Query struct {
	// Domain and Rule, a rule's path, select rules; an empty text selects all.
	Domain, Rule string
	// By is the order. Keys without hits, or without denials, are omitted.
	By adminapi.TopBy
	// N is the maximum number of keys.
	N int
	// HashValues shows each value as # and the first 16 bytes of its SHA-256, as `hash_values` does in keys of counters.
	HashValues bool
}

// Keys returns the busiest or the most denied keys, in descending order.
func (t *Top) Keys(q Query) (adminapi.TopKeys, error) {
	if q.By != adminapi.ByHits && q.By != adminapi.ByDenied {
		return adminapi.TopKeys{}, ErrBy
	}
	t.countAll()
	var found []row
	for _, r := range rulesOf(*t.live.Load()) {
		found = append(found, r.rows(q)...)
		if len(found) > 4*q.N+1000 {
			found = first(found, q.N)
		}
	}
	a := adminapi.TopKeys{
		By: q.By, Since: t.since.Load()[1], KeptPerRule: t.o.PerRule, Hashed: q.HashValues, Missed: t.missed.Load(),
		Keys: []adminapi.TopKey{},
	}
	for _, r := range first(found, q.N) {
		a.Keys = append(a.Keys, r.show(q.HashValues))
	}
	return a, nil
}

// row is a key with the estimates of its rule's sketches.
type row struct {
	of           *descriptors.Rule
	key          string
	by           Estimate // hits or denied, according to Query.By
	hits, denied Estimate
	total        uint64 // sum of the rule's hits or denials
}

// first sorts the rows, and returns the first n.
func first(rows []row, n int) []row {
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.by.Count, a.by.Count), cmp.Compare(a.by.Error, b.by.Error), cmp.Compare(a.key, b.key))
	})
	return rows[:min(n, len(rows))]
}

// rows returns the rule's first keys if the query selects the rule.
func (r *rule) rows(q Query) []row {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q.Domain != "" && r.of.Domain != q.Domain || q.Rule != "" && r.of.Path != q.Rule {
		return nil
	}
	pick := func(h *half) *sketch {
		if q.By == adminapi.ByDenied {
			return &h.denied
		}
		return &h.hits
	}
	var rows []row
	seen := map[uint64]bool{}
	var total uint64
	for _, h := range r.halves() {
		s := pick(h)
		total = sum(total, s.total())
		for i, c := range s.slots {
			if c.count == 0 || seen[c.hash] {
				continue
			}
			seen[c.hash] = true
			a := row{of: r.of, key: string(s.key(i))}
			for _, h := range r.halves() {
				a.hits = a.hits.plus(h.hits.estimate(c.hash))
				a.denied = a.denied.plus(h.denied.estimate(c.hash))
			}
			a.by = a.hits
			if q.By == adminapi.ByDenied {
				a.by = a.denied
			}
			rows = append(rows, a)
		}
	}
	rows = first(rows, q.N)
	for i := range rows {
		rows[i].total = total
	}
	return rows
}

func (r *row) show(hash bool) adminapi.TopKey {
	k := adminapi.TopKey{
		Domain: r.of.Domain, Rule: r.of.Path, Entries: []descriptors.Entry{},
		Hits: r.hits.Count, HitsError: r.hits.Error, Denied: r.denied.Count, DeniedError: r.denied.Error,
		Share: min(1, float64(r.by.Count)/float64(r.total)),
	}
	if !hash {
		k.Counter = r.key
	}
	terms, _ := descriptors.ParseKey(r.key)
	for _, e := range terms.Entries {
		if hash {
			e.Value = Hashed(e.Value)
		}
		k.Entries = append(k.Entries, e)
	}
	k.Descriptor = descriptors.FormatEntries(k.Entries)
	return k
}

// isHash matches a value hashed by `hash_values`.
var isHash = regexp.MustCompile("^#[0-9a-f]{32}$")

// Hashed returns a value in the form of `hash_values`. It does not hash a hash again.
func Hashed(value string) string {
	if isHash.MatchString(value) {
		return value
	}
	sum := sha256.Sum256([]byte(value))
	return "#" + hex.EncodeToString(sum[:16])
}
