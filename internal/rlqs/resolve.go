package rlqs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// MaxIDBytes is the maximum length of a BucketID that gets an assignment. Envoy sends each of its IDs every 5 s.
const MaxIDBytes = 2 << 10

// NewBucketID returns the ID of a bucket's entries: key=value,key=value, sorted by key, in the form of
// descriptors.ParseEntries.
func NewBucketID(entries map[string]string) BucketID {
	all := make([]descriptors.Entry, 0, len(entries))
	for key, value := range entries {
		all = append(all, descriptors.Entry{Key: key, Value: value})
	}
	slices.SortFunc(all, func(a, b descriptors.Entry) int { return cmp.Compare(a.Key, b.Key) })
	return BucketID(descriptors.FormatEntries(all))
}

// Entries returns the bucket's entries, sorted by key. It returns an error if id is not a result of NewBucketID.
func (id BucketID) Entries() ([]descriptors.Entry, error) {
	return descriptors.ParseEntries(string(id))
}

// Resolver returns an Options.Resolve that uses the active rules; rules returns nil if none are loaded. A bucket has
// the same limits and counters as a request with the same entries.
func Resolver(rules func() *descriptors.Set, decider *decide.Decider) func(domain string, id BucketID) Target {
	return func(domain string, id BucketID) (t Target) {
		set := rules()
		entries, err := entriesOf(id)
		switch {
		case set == nil:
			err = decide.ErrNoRules
		case err == nil && set.Domain(domain) != nil:
			if ordered, rule := set.Domain(domain).MatchUnordered(entries); rule != nil {
				err = t.hit(decider, set, domain, ordered)
			}
		}
		if err != nil {
			return Target{Refused: err.Error()}
		}
		return t
	}
}

// entriesOf checks and parses a bucket's entries. Its error is the reason for refusing the bucket.
func entriesOf(id BucketID) ([]descriptors.Entry, error) {
	switch {
	case id == "":
		return nil, errors.New("the bucket has no entries; give Envoy's bucket_id_builder an entry with a string_value")
	case len(id) > MaxIDBytes:
		return nil, fmt.Errorf("the entries have %d bytes, at most %d are allowed; build bucket ids from short values",
			len(id), MaxIDBytes)
	case strings.ContainsRune(string(id), 0) || !utf8.ValidString(string(id)):
		return nil, errors.New("a value is not UTF-8, which a response requires; build bucket ids from other values")
	}
	entries, err := id.Entries()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Value == "" {
			return nil, fmt.Errorf("the value of %s is empty; write a value for it in Envoy's bucket_id_builder",
				words.Shown(e.Key))
		}
	}
	return entries, nil
}

// hit sets the hits and limits of the ordered entries, as for a request with these entries.
func (t *Target) hit(by *decide.Decider, set *descriptors.Set, domain string, entries []descriptors.Entry) error {
	req := by.NewRequest() // a new request, because the hits keep its memory
	req.Domain = domain
	req.Add(decide.Descriptor{Entries: entries, Cost: 1})
	v, err := by.Match(set, req)
	if err != nil {
		return err
	}
	for i, l := range v.Limits {
		h := v.Hits[i]
		if why := Problem(l, &h); why != "" {
			return errors.New(why)
		}
		h.N, h.Peek = 0, false
		t.Hits, t.Limits = append(t.Hits, h), append(t.Limits, l)
	}
	return nil
}

// Problem returns the reason why parts of a limit cannot be assigned to Envoys, with its position and a replacement, or
// "". The hit is for this limit, without a key.
func Problem(l *descriptors.Limit, h *limiter.Hit) string {
	why := Unfit(h)
	if why == "" {
		return ""
	}
	name := ""
	if l.Name != "" {
		name = ", limit " + l.Name
	}
	return fmt.Sprintf("%s%s (%s): %s", l.Rule.Path, name, l.Rule.Source, why)
}
