package decisionlog

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Line is a line of the log.
type Line struct {
	Time        Time         `json:"time"`
	Domain      string       `json:"domain"`
	Answer      string       `json:"answer"` // ok or over_limit
	StoreFailed bool         `json:"store_failed"`
	Weight      float64      `json:"weight"` // how many requests the line stands for
	Descriptors []Descriptor `json:"descriptors"`
	Limits      []Limit      `json:"limits"`
	// Dropped is only in a line about dropped lines: how many since the last such line, by Reason.
	Dropped map[string]uint64 `json:"dropped,omitempty"`
}

// Time is written in UTC, as RFC 3339 with microseconds.
type Time struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	return t.UTC().AppendFormat(nil, `"2006-01-02T15:04:05.000000Z07:00"`), nil
}

// Descriptor is a descriptor of the request.
type Descriptor struct {
	Entries []Entry `json:"entries"`
	Cost    int64   `json:"cost"`
	Rule    string  `json:"rule,omitempty"` // the path of the rule that it matched; empty: none
	// Limit is the limit that it brought along, or nil.
	Limit *Own `json:"limit,omitempty"`
}

// Entry is an entry of a descriptor. Its Value is nil in a log with None.
type Entry struct {
	Key   string  `json:"key"`
	Value *string `json:"value,omitempty"`
}

// Own is a limit that a request brought along.
type Own struct {
	RequestsPerUnit uint32 `json:"requests_per_unit"`
	WindowSeconds   int64  `json:"window_seconds"`
}

// Limit is the decision of a limit.
type Limit struct {
	Descriptor int    `json:"descriptor"` // the index of its descriptor
	Rule       string `json:"rule"`
	Name       string `json:"limit,omitempty"`
	Cost       int64  `json:"cost"`
	Outcome    string `json:"outcome"`
	Remaining  int64  `json:"remaining"`
	// RetryAfter is a number, and only there if the cost does not fit. "null": no wait helps.
	RetryAfter json.RawMessage `json:"retry_after_seconds,omitempty"`
	Wait       float64         `json:"wait_seconds,omitempty"`
	Key        string          `json:"key,omitempty"` // of the counter, plain or hashed like values; empty with None
}

// line returns the line of a request.
func (l *Log) line(now time.Time, weight float64, v *decide.Verdict) Line {
	line := Line{
		Time: Time{now}, Domain: v.Request.Domain, Answer: "ok", StoreFailed: v.Failed(), Weight: weight,
		Descriptors: make([]Descriptor, len(v.Request.Descriptors)), Limits: make([]Limit, len(v.Hits)),
	}
	if v.Denied {
		line.Answer = "over_limit"
	}
	for i := range line.Descriptors {
		line.Descriptors[i] = l.descriptor(v, i)
	}
	for i := range line.Limits {
		line.Limits[i] = l.limit(v, i)
	}
	return line
}

func (l *Log) descriptor(v *decide.Verdict, i int) Descriptor {
	d, rule := &v.Request.Descriptors[i], v.Statuses[i].Rule
	out := Descriptor{Entries: make([]Entry, len(d.Entries)), Cost: d.Cost}
	for j, e := range d.Entries {
		out.Entries[j].Key = e.Key
		if l.o.Values == Hashed || rule != nil && rule.Hashes(j) {
			e.Value = l.hash.hash("value", e.Key, e.Value)
		}
		if l.o.Values != None {
			out.Entries[j].Value = &e.Value
		}
	}
	if rule != nil {
		out.Rule = rule.Path
	}
	if own := d.Own; own.Window != 0 {
		out.Limit = &Own{own.Requests, int64(own.Window / time.Second)}
	}
	return out
}

func (l *Log) limit(v *decide.Verdict, i int) Limit {
	limit, hit, d := v.Limits[i], &v.Hits[i], &v.Decisions[i]
	out := Limit{
		Descriptor: hit.Group, Rule: limit.Rule.Path, Name: limit.Name, Cost: hit.N, Outcome: v.Outcome(i).String(),
		Remaining: d.Remaining, Wait: d.Wait.Seconds(),
	}
	switch {
	case d.Allowed:
	case d.RetryAfter == limiter.Never:
		out.RetryAfter = json.RawMessage("null")
	default:
		out.RetryAfter = strconv.AppendFloat(nil, d.RetryAfter.Seconds(), 'f', -1, 64)
	}
	switch l.o.Values {
	case Plain: // with hash_values the key itself has a hash
		out.Key = hit.Key
	case Hashed:
		out.Key = l.hash.hash("counter", hit.Key)
	case None:
	}
	return out
}

// hashPrefix tells a hash from a plain value.
const hashPrefix = "hmac:"

const (
	hashBytes = 16 // of HMAC-SHA256's 32
	minKey    = 16 // bytes
)

// ReadKey reads the secret of hashes from a file. The secret has at least 16 bytes, without white space around them.
func ReadKey(path string) ([]byte, error) {
	key, err := fileread.ReadFile(context.Background(), path)
	if err != nil {
		return nil, err
	}
	if key = bytes.TrimSpace(key); len(key) < minKey {
		return nil, fmt.Errorf(
			"%s has %d bytes, a key needs %d or more: openssl rand -hex 32 > %s", path, len(key), minKey, path)
	}
	return key, nil
}

// HashValues returns the function that hashes an entry's value with the secret, as a log with Hashed does.
func HashValues(secret []byte) func(key, value string) string {
	h := newHasher(secret)
	return func(key, value string) string { return h.hash("value", key, value) }
}

// IsHash reports whether a value in a log is a hash.
func IsHash(value string) bool {
	rest, ok := strings.CutPrefix(value, hashPrefix)
	return ok && len(rest) == 2*hashBytes
}

// hasher makes hashes with a secret. It is safe for concurrent use.
type hasher struct{ states sync.Pool }

type hashState struct {
	mac  hash.Hash
	text []byte
}

func newHasher(secret []byte) *hasher {
	if secret == nil {
		secret = make([]byte, sha256.Size)
		rand.Read(secret)
	}
	return &hasher{sync.Pool{New: func() any { return &hashState{mac: hmac.New(sha256.New, secret)} }}}
}

// hash hashes the parts, each of which ends with a zero byte. Only the last part may have a zero byte inside: keys of
// entries come from Envoy's configuration and have none.
func (h *hasher) hash(parts ...string) string {
	s, ok := h.states.Get().(*hashState)
	if !ok {
		return ""
	}
	defer h.states.Put(s)
	s.text = s.text[:0]
	for _, p := range parts {
		s.text = append(append(s.text, p...), 0)
	}
	s.mac.Reset()
	s.mac.Write(s.text)
	s.text = s.mac.Sum(s.text[:0])
	return hashPrefix + hex.EncodeToString(s.text[:hashBytes])
}
