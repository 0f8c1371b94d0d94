package decisionlog

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/fileread"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Line is a line of the log.
type Line struct {
	Time        time.Time    `json:"time"`
	Domain      string       `json:"domain"`
	Answer      string       `json:"answer"` // ok or over_limit
	StoreFailed bool         `json:"store_failed"`
	Weight      float64      `json:"weight"` // how many requests the line stands for
	Descriptors []Descriptor `json:"descriptors"`
	Limits      []Limit      `json:"limits"`
	// Dropped is only in a line about dropped lines: how many since the last such line, by Reason.
	Dropped map[string]uint64 `json:"dropped"`
}

// Descriptor is a descriptor of the request.
type Descriptor struct {
	Entries []Entry `json:"entries"`
	Cost    int64   `json:"cost"`
	Rule    string  `json:"rule"` // the path of the rule that it matched; empty: none
	// Limit is the limit that it brought along, or nil.
	Limit *Own `json:"limit"`
}

// Entry is an entry of a descriptor. Its Value is nil in a log with None.
type Entry struct {
	Key   string  `json:"key"`
	Value *string `json:"value"`
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
	Name       string `json:"limit"`
	Cost       int64  `json:"cost"`
	Outcome    string `json:"outcome"`
	Remaining  int64  `json:"remaining"`
	// RetryAfter is only there if the cost does not fit. Nil then: no wait helps.
	RetryAfter *float64 `json:"retry_after_seconds"`
	Wait       float64  `json:"wait_seconds"`
	Key        string   `json:"key"` // of the counter, plain or hashed like values; empty in a log with None
}

// timeForm is RFC 3339 with microseconds.
const timeForm = "2006-01-02T15:04:05.000000Z07:00"

func appendTime(dst []byte, now time.Time) []byte {
	return append(now.UTC().AppendFormat(append(dst, `{"time":"`...), timeForm), '"')
}

// appendLine appends the line of a request.
func (l *Log) appendLine(dst []byte, now time.Time, weight string, v *decide.Verdict) []byte {
	dst = appendTime(dst, now)
	dst = appendText(append(dst, `,"domain":`...), v.Request.Domain)
	answer := `,"answer":"ok","store_failed":`
	if v.Denied {
		answer = `,"answer":"over_limit","store_failed":`
	}
	dst = strconv.AppendBool(append(dst, answer...), v.Failed())
	dst = append(append(dst, `,"weight":`...), weight...)
	dst = append(dst, `,"descriptors":[`...)
	for i := range v.Request.Descriptors {
		dst = l.appendDescriptor(comma(dst, i), v, i)
	}
	dst = append(dst, `],"limits":[`...)
	for i := range v.Hits {
		dst = l.appendLimit(comma(dst, i), v, i)
	}
	return append(dst, "]}\n"...)
}

func (l *Log) appendDescriptor(dst []byte, v *decide.Verdict, i int) []byte {
	d, rule := &v.Request.Descriptors[i], v.Statuses[i].Rule
	dst = append(dst, `{"entries":[`...)
	for j, e := range d.Entries {
		dst = appendText(append(comma(dst, j), `{"key":`...), e.Key)
		hashed := l.o.Values == Hashed || rule != nil && rule.Hashes(j)
		switch {
		case l.o.Values == None:
		case hashed:
			dst = l.hash.appendHash(append(dst, `,"value":"`...), "value", e.Key, e.Value)
			dst = append(dst, '"')
		default:
			dst = appendText(append(dst, `,"value":`...), e.Value)
		}
		dst = append(dst, '}')
	}
	dst = strconv.AppendInt(append(dst, `],"cost":`...), d.Cost, 10)
	if rule != nil {
		dst = appendText(append(dst, `,"rule":`...), rule.Path)
	}
	if own := d.Own; own.Window != 0 {
		dst = strconv.AppendUint(append(dst, `,"limit":{"requests_per_unit":`...), uint64(own.Requests), 10)
		dst = strconv.AppendInt(append(dst, `,"window_seconds":`...), int64(own.Window/time.Second), 10)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

func (l *Log) appendLimit(dst []byte, v *decide.Verdict, i int) []byte {
	limit, hit, d, outcome := v.Limits[i], &v.Hits[i], &v.Decisions[i], v.Outcome(i)
	dst = strconv.AppendInt(append(dst, `{"descriptor":`...), int64(hit.Group), 10)
	dst = appendText(append(dst, `,"rule":`...), limit.Rule.Path)
	if limit.Name != "" {
		dst = appendText(append(dst, `,"limit":`...), limit.Name)
	}
	dst = strconv.AppendInt(append(dst, `,"cost":`...), hit.N, 10)
	dst = append(append(append(dst, `,"outcome":"`...), outcome.String()...), '"')
	dst = strconv.AppendInt(append(dst, `,"remaining":`...), d.Remaining, 10)
	switch {
	case d.Allowed:
	case d.RetryAfter == limiter.Never:
		dst = append(dst, `,"retry_after_seconds":null`...)
	default:
		dst = appendSeconds(append(dst, `,"retry_after_seconds":`...), d.RetryAfter)
	}
	if d.Wait > 0 {
		dst = appendSeconds(append(dst, `,"wait_seconds":`...), d.Wait)
	}
	switch l.o.Values {
	case Plain: // with hash_values the key itself has a hash
		dst = appendText(append(dst, `,"key":`...), hit.Key)
	case Hashed:
		dst = append(l.hash.appendHash(append(dst, `,"key":"`...), "counter", hit.Key), '"')
	case None:
	}
	return append(dst, '}')
}

// appendDropped appends a line about what was dropped between two counts.
func appendDropped(dst []byte, now time.Time, count, before [reasons]uint64) []byte {
	dst = append(appendTime(dst, now), `,"dropped":{`...)
	for r := range count {
		dst = appendText(comma(dst, r), Reason(r).String())
		dst = strconv.AppendUint(append(dst, ':'), count[r]-before[r], 10)
	}
	return append(dst, "}}\n"...)
}

func comma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}

func appendSeconds(dst []byte, d time.Duration) []byte {
	return strconv.AppendFloat(dst, d.Seconds(), 'f', -1, 64)
}

// appendText appends a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendText(dst []byte, text string) []byte {
	const lowerHex = "0123456789abcdef"
	dst = append(dst, '"')
	done := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(text[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(append(dst, text[done:i]...), "\ufffd"...)
				done = i + 1
			}
			i += size
			continue
		}
		if c < ' ' || c == '"' || c == '\\' || c == 0x7f {
			dst = append(dst, text[done:i]...)
			if c == '"' || c == '\\' {
				dst = append(dst, '\\', c)
			} else {
				dst = append(dst, `\u00`...)
				dst = append(dst, lowerHex[c>>4], lowerHex[c&15])
			}
			done = i + 1
		}
		i++
	}
	return append(append(dst, text[done:]...), '"')
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
	return func(key, value string) string { return string(h.appendHash(nil, "value", key, value)) }
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

// appendHash appends the hash of the parts, each of which ends with a zero byte. Only the last part may have a zero
// byte inside: keys of entries come from Envoy's configuration and have none.
func (h *hasher) appendHash(dst []byte, parts ...string) []byte {
	s, ok := h.states.Get().(*hashState)
	if !ok {
		return dst
	}
	defer h.states.Put(s)
	s.text = s.text[:0]
	for _, p := range parts {
		s.text = append(append(s.text, p...), 0)
	}
	s.mac.Reset()
	s.mac.Write(s.text)
	s.text = s.mac.Sum(s.text[:0])
	return hex.AppendEncode(append(dst, hashPrefix...), s.text[:hashBytes])
}
