package actions

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// matcher reports whether a request matches.
type matcher func(req *Request) bool

// matchAction returns an action whose value applies if a request matches all of matches, or with expect_match: false if
// it does not.
func matchAction(at, key, value string, matches []matcher, expect *wrapperspb.BoolValue) (action, error) {
	expected := expect == nil || expect.GetValue()
	return action{key, func(req *Request) (string, found) {
		if slices.ContainsFunc(matches, func(m matcher) bool { return !m(req) }) == expected {
			return "", no
		}
		return value, yes
	}}, checkConstant(at, value)
}

func (p *Phase) headerValueMatch(at string, m *routev3.RateLimit_Action_HeaderValueMatch) (action, error) {
	var matches []matcher
	for i, h := range m.GetHeaders() {
		one, err := p.headerMatcher(fmt.Sprintf("%s.headers[%d]", at, i), h)
		if err != nil {
			return action{}, err
		}
		matches = append(matches, one)
	}
	key := cmp.Or(m.GetDescriptorKey(), "header_match")
	return matchAction(at, key, m.GetDescriptorValue(), matches, m.GetExpectMatch())
}

// headerMatcher reports whether one of a header's values matches, or with invert_match, whether none does.
func (p *Phase) headerMatcher(at string, h *routev3.HeaderMatcher) (matcher, error) {
	name, invert, missingIsEmpty := p.header(h.GetName()), h.GetInvertMatch(), h.GetTreatMissingHeaderAsEmpty()
	isPresent := true
	var fits test // nil if only presence matters
	var err error
	switch s := h.GetHeaderMatchSpecifier().(type) {
	case nil:
	case *routev3.HeaderMatcher_PresentMatch:
		isPresent = s.PresentMatch
	case *routev3.HeaderMatcher_StringMatch:
		fits, err = stringTest(at+".string_match", s.StringMatch)
	case *routev3.HeaderMatcher_RangeMatch:
		start, end := s.RangeMatch.GetStart(), s.RangeMatch.GetEnd()
		fits = func(value []byte) bool {
			n, err := strconv.ParseInt(strings.Trim(string(value), asciiSpace), 10, 64)
			return err == nil && start <= n && n < end
		}
	default:
		err = refuse(at, fieldOf(s), "write string_match")
	}
	return func(req *Request) bool {
		value, ok := req.header(name, 0)
		if !ok && !missingIsEmpty {
			return fits == nil && isPresent == invert
		}
		if fits == nil {
			return isPresent != invert
		}
		matches := fits(value)
		for n := 1; ok && !matches; n++ {
			if value, ok = req.header(name, n); ok {
				matches = fits(value)
			}
		}
		return matches != invert
	}, err
}

// asciiSpace are the characters that Envoy ignores around numbers.
const asciiSpace = " \t\n\v\f\r"

// test tests a value.
type test func(value []byte) bool

// comparison is a way to compare a value with a text.
type comparison uint8

const (
	isEqual comparison = iota
	hasPrefix
	hasSuffix
	contains
)

func (c comparison) holds(value, text []byte) bool {
	switch c {
	case hasPrefix:
		return bytes.HasPrefix(value, text)
	case hasSuffix:
		return bytes.HasSuffix(value, text)
	case contains:
		return bytes.Contains(value, text)
	default:
		return bytes.Equal(value, text)
	}
}

// textTest compares values with a text. To ignore the case of ASCII letters, it converts a copy of the value to lower
// case, so that the time is linear in the value's length.
func textTest(compare comparison, text string, ignoreCase bool) test {
	want := []byte(text)
	if !ignoreCase {
		return func(value []byte) bool { return compare.holds(value, want) }
	}
	want = appendLower(nil, want)
	return func(value []byte) bool {
		switch more := len(value) - len(want); { // copy only the part to compare
		case more <= 0:
		case compare == hasPrefix:
			value = value[:len(want)]
		case compare == hasSuffix:
			value = value[more:]
		case compare == isEqual:
			return false
		}
		var short [256]byte
		return compare.holds(appendLower(short[:0], value), want)
	}
}

// stringTest compiles a StringMatcher.
func stringTest(at string, m *matcherv3.StringMatcher) (test, error) {
	ignoreCase := m.GetIgnoreCase()
	switch s := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return textTest(isEqual, s.Exact, ignoreCase), nil
	case *matcherv3.StringMatcher_Prefix:
		return textTest(hasPrefix, s.Prefix, ignoreCase), nil
	case *matcherv3.StringMatcher_Suffix:
		return textTest(hasSuffix, s.Suffix, ignoreCase), nil
	case *matcherv3.StringMatcher_Contains:
		return textTest(contains, s.Contains, ignoreCase), nil
	case *matcherv3.StringMatcher_SafeRegex:
		if ignoreCase {
			return nil, fmt.Errorf("%s.ignore_case: has no effect with safe_regex; begin the regex with (?i)", at)
		}
		return regexTest(at+".safe_regex", s.SafeRegex)
	default:
		return nil, refuse(at, fieldOf(s), "Weir does not know this match; use exact, prefix, suffix, contains or safe_regex")
	}
}

// foldsCase matches the flag with which a regex ignores case.
var foldsCase = regexp.MustCompile(`\(\?[a-zA-Z]*i`)

// regexTest compiles a regex that must match the whole value. Envoy's engine reads regex and value as Latin-1, in which
// each byte is a character.
func regexTest(at string, r *matcherv3.RegexMatcher) (test, error) {
	text := r.GetRegex()
	if !isASCII(text) {
		if foldsCase.MatchString(text) {
			return nil, refuse(at+".regex", "(?i) with letters that are not ASCII", "list both cases of each letter")
		}
		text = fromLatin1([]byte(text))
	}
	re, err := regexp.Compile(text) // text alone first, because a parenthesis in text must not close the group below
	if err == nil {
		re, err = regexp.Compile(`\A(?:` + text + `)\z`)
	}
	if err != nil {
		return nil, fmt.Errorf("%s.regex: %w", at, err)
	}
	return func(value []byte) bool {
		if isASCII(value) {
			return re.Match(value)
		}
		return re.MatchString(fromLatin1(value))
	}, nil
}

func isASCII[T string | []byte](text T) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// fromLatin1 converts Latin-1 to UTF-8.
func fromLatin1(text []byte) string {
	b := make([]byte, 0, 2*len(text))
	for _, c := range text {
		b = utf8.AppendRune(b, rune(c))
	}
	return string(b)
}

// appendLower appends text with its ASCII letters in lower case.
func appendLower(b, text []byte) []byte {
	for _, c := range text {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		b = append(b, c)
	}
	return b
}
