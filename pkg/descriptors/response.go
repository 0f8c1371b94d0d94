package descriptors

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a response. Envoy by default takes header fields up to 60 KiB in all.
const (
	maxResponseHeaders = 32
	maxHeaderName      = 256     // bytes
	maxHeaderValue     = 4 << 10 // bytes
	maxBody            = 16 << 10
)

// Response is what a denied request is told.
type Response struct {
	// Headers are added to the response, in file order. Envoy takes names in any case.
	Headers []Header `json:"headers,omitempty"`
	// Body is the response's.
	Body string `json:"body,omitempty"`
}

// Header is a header field, checked to be one that Envoy can send.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// response reads `response`. Nil if there is none.
func (r *reader) response(n *yaml.Node) *Response {
	if isNull(resolve(n)) {
		return nil
	}
	s := newShape[Response]("response")
	s.field("headers", func(n *yaml.Node, into *Response) { into.Headers = r.headers(n) })
	s.field("body", func(n *yaml.Node, into *Response) {
		if into.Body = r.text(n); len(into.Body) > maxBody {
			r.add(r.at(n), "body has %d bytes, at most %d are sent; write less", len(into.Body), maxBody)
		}
	})
	var res Response
	before := r.errors()
	readFields(r, n, s, &res)
	if len(res.Headers) == 0 && res.Body == "" && r.errors() == before {
		r.add(r.at(n), "response is empty; write headers: or body:, or leave it out")
	}
	return &res
}

func (r *reader) headers(n *yaml.Node) (all []Header) {
	if isNull(resolve(n)) {
		return nil
	}
	r.mapping(n, "headers", func(key, value *yaml.Node) {
		r.field = "a header's value"
		h := Header{strings.Clone(key.Value), r.text(value)}
		r.checkHeader(h, r.at(key), r.at(value))
		same := func(other Header) bool { return strings.EqualFold(other.Name, h.Name) }
		if slices.ContainsFunc(all, same) {
			r.add(r.at(key), "header %s is given twice; upper and lower case do not differ; remove one of the two", shown(h.Name))
		}
		all = append(all, h)
	})
	if len(all) > maxResponseHeaders {
		r.add(r.at(n), "%d headers are given, at most %d are sent; write fewer", len(all), maxResponseHeaders)
	}
	return all
}

// reservedHeaders are made by Envoy, which a second one could break, or by Weir.
var reservedHeaders = []string{
	"connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
	"retry-after",
}

func (r *reader) checkHeader(h Header, nameAt, valueAt position) {
	switch {
	case len(h.Name) > maxHeaderName:
		r.add(nameAt, "a header's name has %d bytes, at most %d are sent; write less", len(h.Name), maxHeaderName)
	case h.Name == "" || strings.ContainsFunc(h.Name, notToken):
		r.add(nameAt, "%s is no header's name; write letters, digits and -", shown(h.Name))
	case slices.Contains(reservedHeaders, strings.ToLower(h.Name)):
		r.add(nameAt, "header %s is made by Envoy or Weir; leave it out", h.Name)
	}
	switch {
	case len(h.Value) > maxHeaderValue:
		r.add(valueAt, "a header's value has %d bytes, at most %d are sent; write less", len(h.Value), maxHeaderValue)
	case strings.ContainsFunc(h.Value, notPrintable):
		r.add(valueAt, "header %s: a value is one line of printable ASCII; write other characters in an encoding such as %%C3%%A9", shown(h.Name))
	case strings.TrimSpace(h.Value) != h.Value:
		r.add(valueAt, "header %s: a value neither begins nor ends with a space; remove it", shown(h.Name))
	}
}

// notToken says whether RFC 9110 forbids the character in a field's name.
func notToken(c rune) bool {
	alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
	return !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}

func notPrintable(c rune) bool { return (c < ' ' || c > '~') && c != '\t' }
