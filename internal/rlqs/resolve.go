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

// MaxIDBytes is the longest BucketID that gets an assignment. Envoy keeps each ID for ever, and sends it every 5 s.
const MaxIDBytes = 2 << 10

// NewBucketID returns the ID of a bucket's entries: key=value,key=value, sorted by key, as descriptors.ParseEntries
// reads it.
func NewBucketID(entries map[string]string) BucketID {
	all := make([]descriptors.Entry, 0, len(entries))
	for key, value := range entries {
		all = append(all, descriptors.Entry{Key: key, Value: value})
	}
	slices.SortFunc(all, func(a, b descriptors.Entry) int { return cmp.Compare(a.Key, b.Key) })
	return BucketID(descriptors.FormatEntries(all))
}

// Entries returns the bucket's entries, sorted by key. The error is of a text that NewBucketID did not make.
func (id BucketID) Entries() ([]descriptors.Entry, error) {
	return descriptors.ParseEntries(string(id))
}

// Resolver returns an Options.Resolve by the rules in force, nil while none are loaded. The decider finds limits and
// their counters, so that a bucket has the same ones as a request with the same entries.
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

// entriesOf checks what an Envoy sent. The error says why the bucket gets no assignment.
func entriesOf(id BucketID) ([]descriptors.Entry, error) {
	switch {
	case id == "":
		return nil, errors.New("it has no entries; give Envoy's bucket_id_builder an entry with a string_value")
	case len(id) > MaxIDBytes:
		return nil, fmt.Errorf("its entries have %d bytes, and may have %d; build bucket ids of short values", len(id),
			MaxIDBytes)
	case strings.ContainsRune(string(id), 0) || !utf8.ValidString(string(id)):
		return nil, errors.New("a value is not UTF-8, which a response cannot have; build bucket ids of other values")
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

// hit makes the hits of the ordered entries, as a request with them has.
func (t *Target) hit(by *decide.Decider, set *descriptors.Set, domain string, entries []descriptors.Entry) error {
	req := by.NewRequest() // its own memory, which the hits keep
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
		h.N, h.Look = 0, false
		t.Hits, t.Limits = append(t.Hits, h), append(t.Limits, l)
	}
	return nil
}

// Problem says why parts of a limit cannot be assigned to Envoys, with its position and what to write instead; it is
// empty if they can. The hit is one of the limit, without a key.
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
