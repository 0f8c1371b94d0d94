package actions

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A format is Envoy's substitution format, as in access logs: text with commands such as %REQ(x-user)%.
type format []formatPart

// formatPart is literal text if name is "", else a command.
type formatPart struct {
	literal string
	name    string // REQ, RESP or DYNAMIC_METADATA

	header, other string       // of REQ and RESP: the second one, "" if none, replaces an absent first one
	metadata      *MetadataKey // of DYNAMIC_METADATA
	most          int          // bytes of the value; -1 for all
}

// formatCommand is %COMMAND(ARGUMENT):LENGTH%.
var formatCommand = regexp.MustCompile(`%([A-Z0-9_]+)(?:\((.*?)\))?(?::([0-9]+))?%`)

func (p *Phase) compileFormat(at, text string) (format, error) {
	var f format
	literal := func(s string) {
		if n := len(f); n > 0 && f[n-1].name == "" {
			f[n-1].literal += s
		} else {
			f = append(f, formatPart{literal: s})
		}
	}
	for text != "" {
		before, rest, found := strings.Cut(text, "%")
		if before != "" {
			literal(before)
		}
		if !found {
			break
		}
		if strings.HasPrefix(rest, "%") {
			literal("%")
			text = rest[1:]
			continue
		}
		m := formatCommand.FindStringSubmatch("%" + rest)
		if m == nil || !strings.HasPrefix("%"+rest, m[0]) {
			return nil, fmt.Errorf("%s: %q is not a command of Envoy's substitution format; write %%%% for a percent sign",
				at, "%"+rest)
		}
		part, err := p.compileCommand(m[1], m[2], m[3])
		if err != nil {
			return nil, fmt.Errorf("%s: %%%s%%: %w", at, m[1], err)
		}
		f = append(f, part)
		text = rest[len(m[0])-1:]
	}
	return f, nil
}

func (p *Phase) compileCommand(name, argument, length string) (part formatPart, err error) {
	part.name, part.most = name, -1
	if length != "" {
		if part.most, err = strconv.Atoi(length); err != nil {
			return part, fmt.Errorf("length %s: must be at most %d", length, int(^uint(0)>>1))
		}
	}
	switch name {
	case "REQ", "REQUEST_HEADER", "RESP", "RESPONSE_HEADER":
		part.name = "REQ"
		read := p.header
		if strings.HasPrefix(name, "RESP") {
			part.name, read = "RESP", p.responseHeader
		}
		names := strings.Split(argument, "?")
		if names[0] == "" || len(names) > 2 {
			return part, fmt.Errorf("must name one header, or two with ? between them: %%%s(x-user?x-api-key)%%", name)
		}
		part.header = read(names[0])
		if len(names) == 2 && names[1] != "" {
			part.other = read(names[1])
		}
	case "DYNAMIC_METADATA":
		names := strings.Split(argument, ":")
		if len(names) < 2 || names[0] == "" {
			return part, errors.New("must name a namespace and keys: %DYNAMIC_METADATA(NAMESPACE:KEY)%")
		}
		part.metadata = p.readMetadata(MetadataKey{Namespace: names[0], Key: names[1], MayBeNumber: true})
		return part, checkPath(argument, "DYNAMIC_METADATA("+names[0], names[1:])
	default:
		return part, errors.New("is not supported: Weir knows REQ, RESP and DYNAMIC_METADATA")
	}
	return part, nil
}

// headerValue is the value of REQ or RESP, and false without one.
func (f *formatPart) headerValue(req *Request) ([]byte, bool) {
	headers := req.headers
	if f.name == "RESP" {
		headers = req.response
	}
	value, ok := find(headers, f.header, 0)
	if !ok && f.other != "" {
		value, ok = find(headers, f.other, 0)
	}
	return f.cut(value), ok
}

func (f *formatPart) cut(value []byte) []byte {
	if f.most >= 0 && len(value) > f.most {
		return value[:f.most]
	}
	return value
}

// isText reports whether each command makes text of the request. One for metadata may make a number, which Envoy writes
// in a way of its own: 0.0001 as 1e-04. One for the response has nothing to read when the request arrives.
func (f format) isText() bool {
	return !slices.ContainsFunc(f, func(part formatPart) bool { return part.metadata != nil || part.name == "RESP" })
}

// text is the whole text; a header that the request does not have is left out.
func (f format) text(req *Request) string {
	if len(f) == 1 && f[0].name == "" {
		return f[0].literal
	}
	var b []byte
	for i := range f {
		switch part := &f[i]; part.name {
		case "REQ":
			value, _ := part.headerValue(req)
			b = append(b, value...)
		default:
			b = append(b, part.literal...)
		}
	}
	return text(b)
}
