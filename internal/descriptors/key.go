package descriptors

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// The key of a counter is
//
//	algorithm[.interval|.redis_cell][:name|/window][#ordinal][@window]|domain|key=value|key=value...
//
// .interval is for a token bucket that refills in intervals, .redis_cell for a counter of that module; their states
// have other formats. If a rule has several limits, the key has the limit's name or, for a limit without a name, window
// and ordinal (docs/adr/0008): see counter.distinguish. @window is for a limit that a request carries. The value is the
// value in the request. With share_threshold, the value is the pattern, whose * is the only unescaped * of a key; for a
// list, regex or file, it is *# followed by the list, regex or file name (see Matcher.shared). With hash_values, the
// value is # and a hash, whose # is the only unescaped # in a value. With cidr, it is the canonical address. Characters
// that would make a key ambiguous, unreadable or, in Redis Cluster, a hash tag are written as %XX. A key longer than
// maxKey is cut, and ends with # and a hash of the whole key.
//
// The format is the identity of counters: a change resets the counters of all users, so TestKeyGolden pins it.
const (
	maxKey    = 256 // maximum length of a key in bytes
	hashBytes = 16  // length of a hash in bytes: the first 128 bits of SHA-256
)

// level is the form in which a key has the value of one entry.
type level struct {
	shared  string // pattern in place of the value, as in the key
	hash    bool
	address bool // matched by cidr
}

func newLevel(d *Descriptor) level {
	if d.ShareThreshold && d.Match.Form != "" {
		return level{shared: d.Match.shared()}
	}
	if d.ShareThreshold {
		return level{shared: string(appendEscaped(nil, d.Value, &inPattern))}
	}
	return level{hash: d.HashValues, address: d.Match.Form == FormCIDR}
}

// canonical returns the value's address, if the level has cidr.
func (l level) canonical(value string) (addr netip.Addr, ok bool) {
	if !l.address {
		return netip.Addr{}, false
	}
	return address(value)
}

func (r *Rule) level(i int) level {
	if i < len(r.levels) {
		return r.levels[i]
	}
	return level{}
}

// Hashes reports whether the rule has hash_values at entry i, so that its value must not be shown.
func (r *Rule) Hashes(i int) bool { return r.level(i).hash }

// counter is the part of a key that depends on the limit only.
type counter struct {
	algorithm limiter.Algorithm
	atOnce    bool // the bucket refills in intervals
	redisCell bool
	name      string        // name of one limit of several
	window    time.Duration // 0 if it is not in the key
	ordinal   int           // from 2, for limits that otherwise agree; else 0
	own       bool          // limit that a request carries
}

// newCounter returns the counter of a limit that is alone in its rule.
func newCounter(params *limiter.Params, placement *Placement) counter {
	return counter{algorithm: params.Algorithm, atOnce: params.RefillsAtOnce, redisCell: placement.RedisCell}
}

// distinguish makes the key of all[i], a limit without a name, differ from the keys of the rule's other limits without
// names. Keys of different algorithms differ anyway. Among limits of one algorithm, a limit with the longest window,
// which may have counted most, keeps the key of a rule's only limit; the keys of the others contain their windows.
// Among limits with the same window, the keys of all but the first contain an ordinal.
func (c *counter) distinguish(all []checked, i int) {
	p, kind := &all[i].params, newCounter(&all[i].params, &all[i].placement)
	for j := range all {
		l := &all[j]
		if j == i || l.Name != "" || l.Unlimited || newCounter(&l.params, &l.placement) != kind {
			continue
		}
		switch {
		case l.params.Window > p.Window:
			c.window = p.Window
		case l.params.Window == p.Window && j < i:
			c.ordinal = max(c.ordinal, 1) + 1
		}
	}
}

// keyStart returns the part of the key before the entries.
func (c counter) keyStart(domain string) string {
	dst := []byte(c.algorithm.String())
	if c.atOnce {
		dst = append(dst, ".interval"...)
	}
	if c.redisCell {
		dst = append(dst, ".redis_cell"...)
	}
	if c.name != "" {
		dst = appendEscaped(append(dst, ':'), c.name, &inName)
	}
	if c.window > 0 {
		mark := byte('/')
		if c.own {
			mark = '@'
		}
		dst = append(strconv.AppendInt(append(dst, mark), c.window.Microseconds(), 10), "us"...)
	}
	if c.ordinal > 0 {
		dst = strconv.AppendInt(append(dst, '#'), int64(c.ordinal), 10)
	}
	return string(appendEscaped(append(dst, '|'), domain, &inValue))
}

// AppendKey appends the key of the counter for entries that the limit's rule matched, such as
// "funnel|shop|remote_address=10.0.0.1". The key is readable, has at most 256 bytes, and differs from the keys of all
// other counters. It depends on no other part of the rule files, so that the counter survives a change of the limit's
// rate. It allocates only if dst is too small.
func (l *Limit) AppendKey(dst []byte, entries []Entry) []byte {
	start := len(dst)
	dst = append(dst, l.keyStart...)
	if l.Rule.tooLong {
		return dst
	}
	for i := range entries {
		lv := l.Rule.level(i)
		dst = appendEscaped(append(dst, '|'), entries[i].Key, &inKey)
		dst = append(dst, '=')
		if lv.shared != "" {
			dst = append(dst, lv.shared...)
			continue
		}
		from := len(dst)
		if addr, ok := lv.canonical(entries[i].Value); ok {
			dst = addr.AppendTo(dst) // canonical spelling, as in RFC 5952
		} else if lv.hash {
			dst = append(dst, entries[i].Value...)
		} else {
			dst = appendEscaped(dst, entries[i].Value, &inValue)
		}
		if lv.hash {
			dst = hashFrom(dst, from, from)
		}
	}
	if len(dst)-start > maxKey {
		dst = hashFrom(dst, start, readableCut(dst, start+maxKey-1-2*hashBytes))
	}
	return dst
}

// hashFrom replaces dst[cut:] by # and the hash of dst[from:].
func hashFrom(dst []byte, from, cut int) []byte {
	sum := sha256.Sum256(dst[from:])
	return hex.AppendEncode(append(dst[:cut], '#'), sum[:hashBytes])
}

// readableCut returns the last position up to cut that is not within a character or a %XX.
func readableCut(dst []byte, cut int) int {
	for !utf8.RuneStart(dst[cut]) {
		cut--
	}
	for back := 1; back <= 2; back++ {
		if dst[cut-back] == '%' {
			return cut - back
		}
	}
	return cut
}

// raw is the set of ASCII characters that a part of a key has unescaped.
type raw [utf8.RuneSelf]bool

var (
	inValue   = rawBut("%|{}#*")
	inPattern = rawBut("%|{}#")
	inItem    = rawBut("%|{}#*,") // item of a list
	inKey     = rawBut("%|{}#*=")
	inName    = rawBut("%|{}#*@")
)

func rawBut(escaped string) (r raw) {
	for c := byte('!'); c < 0x7f; c++ {
		r[c] = strings.IndexByte(escaped, c) < 0
	}
	return r
}

// appendEscaped appends the text. It writes as %XX all ASCII characters that are not in r, the control characters from
// U+0080 to U+009F, and invalid UTF-8.
func appendEscaped(dst []byte, text string, r *raw) []byte {
	const upperHex = "0123456789ABCDEF"
	done := 0
	for i := 0; i < len(text); {
		size := 1
		if c := text[i]; c < utf8.RuneSelf {
			if r[c] {
				i++
				continue
			}
		} else {
			var char rune
			char, size = utf8.DecodeRuneInString(text[i:])
			if size > 1 && char >= 0xa0 {
				i += size
				continue
			}
		}
		dst = append(dst, text[done:i]...)
		for range size {
			dst = append(dst, '%', upperHex[text[i]>>4], upperHex[text[i]&15])
			i++
		}
		done = i
	}
	return append(dst, text[done:]...)
}

// Counts reports whether AppendKey writes this key for this limit, for some entries.
func (l *Limit) Counts(key string) bool {
	rest, ok := strings.CutPrefix(key, l.keyStart)
	return ok && strings.HasPrefix(rest, "|")
}

// SameCounters reports whether both limits have the same counter for every request, in the same store.
func (l *Limit) SameCounters(other *Limit) bool {
	for i := range max(len(l.Rule.levels), len(other.Rule.levels)) {
		if l.Rule.level(i) != other.Rule.level(i) {
			return false
		}
	}
	return l.keyStart == other.keyStart && l.Placement().Store == other.Placement().Store
}
