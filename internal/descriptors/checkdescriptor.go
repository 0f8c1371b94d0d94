package descriptors

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/weir-ratelimit/weir/internal/words"
)

// checkDescriptor checks a descriptor, without its limits and its relation to other rules.
func (c *Builder) checkDescriptor(d *Descriptor) {
	switch {
	case d.Key == "" && !d.Invalid:
		c.Errorf(d.At, "the key is empty; write the name of a descriptor entry that Envoy sends")
	case d.Key == StartKey || d.Key == HintKey:
		c.Errorf(d.At, "no request has an entry %s when rules match, because Weir uses entries with this key for "+
			"reservations; write another key", d.Key)
	case strings.Contains(d.Key, "*") && !d.Lenient:
		c.Tolerate(d.At, "only an entry with exactly this key matches",
			"key %s contains *, which is a wildcard only in value; write the whole key", d.Key)
	}
	if d.RateLimit != nil && d.RateLimits != nil {
		c.Errorf(d.At, "rate_limit and rate_limits are both given; move the limit of rate_limit into rate_limits")
	}
	switch form := d.Match.Form; {
	case form == "":
		if d.ShareThreshold && !strings.Contains(d.Value, "*") {
			c.Tolerate(d.ShareAt, "it has no effect",
				"share_threshold needs a value that contains *, or values, values_file, cidr or regex, whose requests then "+
					"share one counter; remove share_threshold, or write one of these fields")
		}
	case !slices.Contains([]Form{FormValues, FormFile, FormCIDR, FormRegex}, form):
		c.Errorf(d.Match.At, "%s is not a form of a Matcher; use OneOf, InBlocks or MatchingRegex", form)
	case d.Value != "":
		c.Errorf(d.Match.At, "value and %s are both given; write two descriptors", form)
	case len(d.Match.Items) == 0 && !d.Invalid:
		c.Errorf(d.Match.At, "%s is empty; write at least one item, or leave it out", form)
	}
	if d.Response != nil {
		c.checkResponse(d.Response)
	}
	c.warnInvisible("key", d.Key, d.At)
	c.warnInvisible("value", d.Value, d.ValueAt)
	for i := 0; i < len(d.Match.Items) && d.Match.Form == FormValues; i++ {
		c.warnInvisible("an item of values", d.Match.Items[i].Text, d.Match.Items[i].At)
	}
	if !d.Lenient && strings.ContainsAny(d.Value, `^\[]()+*`) && regexSigns.MatchString(d.Value) {
		c.Warnf(WarnLiteral, d.ValueAt, "value %s looks like a regular expression, but only * is special in a value; "+
			"did you mean regex: '%s'?", words.Shown(d.Value), strings.ReplaceAll(words.Shorten(d.Value), "'", "''"))
	}
	if d.DetailedMetric || d.ValueToMetric {
		c.Warnf(WarnNoEffect, d.At, "detailed_metric and value_to_metric have no effect, since Weir names no metric "+
			"after values that clients send; weir top shows the most frequent values")
	}
}

// warnInvisible warns of the first invisible character of a text: blanks other than spaces, characters without width,
// and spaces at the beginning or end. Only requests that have the same character match.
func (c *Builder) warnInvisible(what, text string, at Position) {
	for i, char := range text {
		atEnd := char == ' ' && (i == 0 || i == len(text)-1)
		ignorable := unicode.In(char, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
		if atEnd || ignorable || !unicode.IsPrint(char) || char == '\u2800' { // the blank of Braille
			c.Warnf(WarnInvisible, at, "%s %s has the invisible character %U at position %d, so that only entries with this "+
				"character match; remove it, unless Envoy sends it", what, strconv.QuoteToASCII(words.Shorten(text)), char,
				utf8.RuneCountInString(text[:i])+1)
			return
		}
	}
}

// regexSigns matches parts of a value that occur almost only in regexes.
var regexSigns = regexp.MustCompile(`^\^.|\.\+|/\.\*|\\[dws./]|\[(0-9|[aA]-[zZ]|\^)|\(\?|[\])]\*|\]\+`)

// Bounds of a response. By default, Envoy accepts 60 KiB of header fields in all.
const (
	maxResponseHeaders = 32
	maxHeaderName      = 256     // maximum length in bytes
	maxHeaderValue     = 4 << 10 // maximum length in bytes
	maxBody            = 16 << 10
)

// Response has the additions to the response to a denied request, which Envoy sends.
type Response struct {
	// Headers are added to the response in file order. Their names may be upper or lower case.
	Headers []Header `json:"headers,omitempty"`
	// Body is the body of the response.
	Body string `json:"body,omitempty"`

	// HeadersAt and BodyAt are the positions of headers and body.
	HeadersAt Position `json:"-"`
	BodyAt    Position `json:"-"`
}

// Header is a header field.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`

	// NameAt and ValueAt are the positions of name and value.
	NameAt  Position `json:"-"`
	ValueAt Position `json:"-"`
}

func (c *Builder) checkResponse(r *Response) {
	if len(r.Body) > maxBody {
		c.Errorf(r.BodyAt, "body has %d bytes, at most %d are sent; write less", len(r.Body), maxBody)
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		c.checkHeader(h)
		same := func(other Header) bool { return strings.EqualFold(other.Name, h.Name) }
		if slices.ContainsFunc(r.Headers[:i], same) {
			c.Errorf(h.NameAt,
				"header %s is given twice (upper and lower case are the same); remove one of the two", words.Shown(h.Name))
		}
	}
	if len(r.Headers) > maxResponseHeaders {
		c.Errorf(r.HeadersAt, "%d headers are given, at most %d are sent; write fewer", len(r.Headers), maxResponseHeaders)
	}
}

// reservedHeaders are set by Envoy or Weir. A second header with one of these names could break the response.
var reservedHeaders = []string{
	"connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
	"upgrade",
	"retry-after",
}

func (c *Builder) checkHeader(h *Header) {
	switch {
	case len(h.Name) > maxHeaderName:
		c.Errorf(h.NameAt, "a header's name has %d bytes, at most %d are sent; write less", len(h.Name), maxHeaderName)
	case !httpguts.ValidHeaderFieldName(h.Name):
		c.Errorf(h.NameAt, "%s is not a header name; write letters, digits and -", words.Shown(h.Name))
	case slices.Contains(reservedHeaders, strings.ToLower(h.Name)):
		c.Errorf(h.NameAt, "Envoy or Weir sets header %s itself; leave it out", h.Name)
	}
	switch {
	case len(h.Value) > maxHeaderValue:
		c.Errorf(h.ValueAt, "a header's value has %d bytes, at most %d are sent; write less", len(h.Value), maxHeaderValue)
	case strings.ContainsFunc(h.Value, notPrintable):
		c.Errorf(h.ValueAt,
			"header %s: a value must be one line of printable ASCII; write other characters in an encoding such as %%C3%%A9",
			words.Shown(h.Name))
	case strings.TrimSpace(h.Value) != h.Value:
		c.Errorf(h.ValueAt, "header %s: a value must not begin or end with a space; remove the space", words.Shown(h.Name))
	}
}

func notPrintable(c rune) bool { return (c < ' ' || c > '~') && c != '\t' }
