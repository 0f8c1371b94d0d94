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

// A counter's key is
//
//	algorithm[.interval|.redis_cell][:name|/window][#ordinal][@window]|domain|key=value|key=value...
//
// with .interval for a token bucket that is refilled in batches, and .redis_cell for a counter of that module, whose
// states are of another form. Among several limits of one rule, the name distinguishes those that have one, and the
// algorithm and the window the others (docs/adr/0008): see counter.distinguish. @window is of a limit
// that a request brought along. The value is the request's, or with share_threshold the pattern, whose * is the only
// raw * (or *# and a list, regex or file, see matcher.shared), or with hash_values # and a hash, whose # is the only
// raw # there, or with cidr the address in one spelling. What would make a key ambiguous, unreadable or, in Redis
// Cluster, a hash tag is written as %XX. A longer key than maxKey ends after # with a hash of all of it.
//
// The form is the counters' identity: a change of it resets every counter of everyone, so TestKeyGolden pins it.
const (
	maxKey    = 256 // bytes
	hashBytes = 16  // of SHA-256: 128 bits
)

// level is how a key shows the value of one entry.
type level struct {
	shared  string // the pattern that stands for the value, as the key has it
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

// canonical is the value's address, if the level is matched by addresses.
func (l level) canonical(value string) (addr netip.Addr, ok bool) {
	if !l.address {
		return netip.Addr{}, false
	}
	return address(value)
}

// level is that of entry i, from 0.
func (r *Rule) level(i int) level {
	if i < len(r.levels) {
		return r.levels[i]
	}
	return level{}
}

// Hashes reports whether nobody may see the value of entry i: the rule has hash_values there.
func (r *Rule) Hashes(i int) bool { return r.level(i).hash }

// counter is what a key says about the limit itself.
type counter struct {
	algorithm limiter.Algorithm
	atOnce    bool // it refills at once
	redisCell bool
	name      string        // of one limit of several
	window    time.Duration // 0: the key does not show it
	ordinal   int           // from 2, of limits that agree in all else
	own       bool          // a request brought the limit along
}

// newCounter is what the key of a limit says that its rule has alone.
func newCounter(params *limiter.Params, placement *Placement) counter {
	return counter{algorithm: params.Algorithm, atOnce: params.RefillsAtOnce, redisCell: placement.RedisCell}
}

// distinguish decides what the key of the limit all[i], which has no name, shows beside the others of its rule that
// have none. Those with another algorithm have other keys anyway. Of those with one algorithm, the one with the
// longest window, which may have counted most, has the key that it would have alone; the others say their window. Of
// those with one window, all but the first say which they are.
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

// keyStart is the key's part before the entries.
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

// AppendKey appends the name of the counter that the limit keeps for the entries of a request that its rule
// matched, like "funnel|shop|remote_address=10.0.0.1": readable, at most 256 bytes long, and never that of
// another domain, limit, or entries that are counted apart. It depends on nothing else of the rule files, so
// the counter outlives an edit of the limit's rate. Allocates only what dst lacks.
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
			dst = addr.AppendTo(dst) // in one spelling, as RFC 5952 has it
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

// readableCut is the last place up to cut that is inside no character and no %XX.
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

// raw says which ASCII characters a part of a key shows as they are.
type raw [utf8.RuneSelf]bool

var (
	inValue   = rawBut("%|{}#*")
	inPattern = rawBut("%|{}#")
	inItem    = rawBut("%|{}#*,") // of a list
	inKey     = rawBut("%|{}#*=")
	inName    = rawBut("%|{}#*@")
)

func rawBut(escaped string) (r raw) {
	for c := byte('!'); c < 0x7f; c++ {
		r[c] = strings.IndexByte(escaped, c) < 0
	}
	return r
}

// appendEscaped appends the text with everything as %XX that is neither raw ASCII nor a character beyond the
// control characters of Unicode's first page.
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

// Counts reports whether a counter's key is one that AppendKey writes for this limit of its rule, and not for another.
func (l *Limit) Counts(key string) bool {
	rest, ok := strings.CutPrefix(key, l.keyStart)
	return ok && strings.HasPrefix(rest, "|")
}

// SameCounters reports whether both limits have the same counter for each request, in the same store.
func (l *Limit) SameCounters(other *Limit) bool {
	for i := range max(len(l.Rule.levels), len(other.Rule.levels)) {
		if l.Rule.level(i) != other.Rule.level(i) {
			return false
		}
	}
	return l.keyStart == other.keyStart && l.Placement().Store == other.Placement().Store
}
