package actions

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// queryParameter reads the first value of a query parameter.
type queryParameter struct {
	path, name   string
	skipIfAbsent bool
}

func (p *Phase) queryParameter(q *routev3.RateLimit_Action_QueryParameters) action {
	return action{
		cmp.Or(q.GetDescriptorKey(), "query_param"),
		queryParameter{p.header(":path"), q.GetQueryParameterName(), q.GetSkipIfAbsent()}.value,
	}
}

func (q queryParameter) value(req *Request) (string, found) {
	path, _ := req.header(q.path, 0)
	if value, ok := queryValue(path, q.name); ok {
		return text(decodePercent(value)), yes
	}
	return "", absent(q.skipIfAbsent)
}

func (p *Phase) queryParameterValueMatch(
	at string, m *routev3.RateLimit_Action_QueryParameterValueMatch,
) (action, error) {
	var matches []matcher
	for i, q := range m.GetQueryParameters() {
		at := fmt.Sprintf("%s.query_parameters[%d]", at, i)
		one := &queryMatcher{path: p.header(":path"), name: q.GetName(), present: true}
		var err error
		switch s := q.GetQueryParameterMatchSpecifier().(type) {
		case nil:
		case *routev3.QueryParameterMatcher_PresentMatch:
			one.present = s.PresentMatch
		case *routev3.QueryParameterMatcher_StringMatch:
			one.test, err = stringTest(at+".string_match", s.StringMatch)
		default:
			err = refuse(at, fieldOf(s), "Weir does not know this match; use string_match")
		}
		if err != nil {
			return action{}, err
		}
		matches = append(matches, one)
	}
	key := cmp.Or(m.GetDescriptorKey(), "query_match")
	return matchAction(at, key, m.GetDescriptorValue(), matches, m.GetExpectMatch())
}

// queryMatcher matches the first value of a query parameter.
type queryMatcher struct {
	path, name string
	test       test // nil if only presence matters
	present    bool // without a test: whether the parameter must be present
}

func (m *queryMatcher) match(req *Request) bool {
	path, _ := req.header(m.path, 0)
	value, ok := queryValue(path, m.name)
	if m.test == nil {
		return ok == m.present
	}
	return ok && m.test(decodePercent(value))
}

// queryValue finds the first parameter whose decoded name is name, and returns its undecoded value. A parameter without
// = has an empty value.
func queryValue(path []byte, name string) (value []byte, ok bool) {
	_, query, _ := bytes.Cut(path, []byte("?"))
	for len(query) > 0 {
		var parameter []byte
		parameter, query, _ = bytes.Cut(query, []byte("&"))
		key, value, _ := bytes.Cut(parameter, []byte("="))
		if string(decodePercent(key)) == name {
			return value, true
		}
	}
	return nil, false
}

// decodePercent decodes sequences such as %41. It does not change a +, nor a % without two hexadecimal digits.
func decodePercent(text []byte) []byte {
	if bytes.IndexByte(text, '%') < 0 {
		return text
	}
	decoded := make([]byte, 0, len(text))
	for len(text) > 0 {
		if text[0] == '%' && len(text) >= 3 {
			if longer, err := hex.AppendDecode(decoded, text[1:3]); err == nil {
				decoded, text = longer, text[3:]
				continue
			}
		}
		decoded, text = append(decoded, text[0]), text[1:]
	}
	return decoded
}
