package descriptors

import (
	"slices"
	"strings"
)

// Bounds of a response. Envoy by default takes header fields up to 60 KiB in all.
const (
	maxResponseHeaders = 32
	maxHeaderName      = 256     // bytes
	maxHeaderValue     = 4 << 10 // bytes
	maxBody            = 16 << 10
)

// Response is what Envoy adds to the response to a denied request.
type Response struct {
	// Headers are added to the response, in file order. Envoy takes names in any case.
	Headers []Header `json:"headers,omitempty"`
	// Body is the response's.
	Body string `json:"body,omitempty"`

	// HeadersAt and BodyAt are where the headers and the body are written.
	HeadersAt Position `json:"-"`
	BodyAt    Position `json:"-"`
}

// Header is a header field.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`

	// NameAt and ValueAt are where these are written.
	NameAt  Position `json:"-"`
	ValueAt Position `json:"-"`
}

// checkResponse checks that Envoy can send the response.
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
				"header %s is given twice; upper and lower case do not differ; remove one of the two", Shown(h.Name))
		}
	}
	if len(r.Headers) > maxResponseHeaders {
		c.Errorf(r.HeadersAt, "%d headers are given, at most %d are sent; write fewer", len(r.Headers), maxResponseHeaders)
	}
}

// reservedHeaders are made by Envoy, which a second one could break, or by Weir.
var reservedHeaders = []string{
	"connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
	"upgrade",
	"retry-after",
}

func (c *Builder) checkHeader(h *Header) {
	switch {
	case len(h.Name) > maxHeaderName:
		c.Errorf(h.NameAt, "a header's name has %d bytes, at most %d are sent; write less", len(h.Name), maxHeaderName)
	case h.Name == "" || strings.ContainsFunc(h.Name, notToken):
		c.Errorf(h.NameAt, "%s is no header's name; write letters, digits and -", Shown(h.Name))
	case slices.Contains(reservedHeaders, strings.ToLower(h.Name)):
		c.Errorf(h.NameAt, "header %s is made by Envoy or Weir; leave it out", h.Name)
	}
	switch {
	case len(h.Value) > maxHeaderValue:
		c.Errorf(h.ValueAt, "a header's value has %d bytes, at most %d are sent; write less", len(h.Value), maxHeaderValue)
	case strings.ContainsFunc(h.Value, notPrintable):
		c.Errorf(h.ValueAt,
			"header %s: a value is one line of printable ASCII; write other characters in an encoding such as %%C3%%A9",
			Shown(h.Name))
	case strings.TrimSpace(h.Value) != h.Value:
		c.Errorf(h.ValueAt, "header %s: a value neither begins nor ends with a space; remove it", Shown(h.Name))
	}
}

// notToken reports whether RFC 9110 forbids the character in a field's name.
func notToken(c rune) bool {
	alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
	return !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}

func notPrintable(c rune) bool { return (c < ' ' || c > '~') && c != '\t' }
