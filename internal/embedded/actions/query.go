package actions

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// queryParameter reads the first value of a query parameter.
func (p *Phase) queryParameter(q *routev3.RateLimit_Action_QueryParameters) action {
	read, otherwise := p.queryReader(q.GetQueryParameterName()), absent(q.GetSkipIfAbsent())
	return action{cmp.Or(q.GetDescriptorKey(), "query_param"), func(req *Request) (string, found) {
		if value, ok := read(req); ok {
			return text(value), yes
		}
		return "", otherwise
	}}
}

// queryReader returns a function that returns the first value of a query parameter, decoded.
func (p *Phase) queryReader(name string) func(req *Request) (value []byte, ok bool) {
	header := p.header(":path")
	return func(req *Request) (value []byte, ok bool) {
		path, _ := req.header(header, 0)
		value, ok = queryValue(path, name)
		return decodePercent(value), ok
	}
}

func (p *Phase) queryParameterValueMatch(
	at string, m *routev3.RateLimit_Action_QueryParameterValueMatch,
) (action, error) {
	var matches []matcher
	for i, q := range m.GetQueryParameters() {
		at := fmt.Sprintf("%s.query_parameters[%d]", at, i)
		read, isPresent := p.queryReader(q.GetName()), true
		var fits test // nil if only presence matters
		var err error
		switch s := q.GetQueryParameterMatchSpecifier().(type) {
		case nil:
		case *routev3.QueryParameterMatcher_PresentMatch:
			isPresent = s.PresentMatch
		case *routev3.QueryParameterMatcher_StringMatch:
			fits, err = stringTest(at+".string_match", s.StringMatch)
		default:
			err = refuse(at, fieldOf(s), "Weir does not know this match; use string_match")
		}
		if err != nil {
			return action{}, err
		}
		matches = append(matches, func(req *Request) bool {
			value, ok := read(req)
			return ok == isPresent && (fits == nil || fits(value))
		})
	}
	key := cmp.Or(m.GetDescriptorKey(), "query_match")
	return matchAction(at, key, m.GetDescriptorValue(), matches, m.GetExpectMatch())
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
