package actions

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// command is a command of Envoy's substitution format, such as %REQ(x-user)%.
type command struct {
	name string // REQ, RESP or DYNAMIC_METADATA

	header, other string       // names of headers, for REQ and RESP; other is used if header is absent
	metadata      *MetadataKey // key of DYNAMIC_METADATA
	most          int          // maximum length of the value in bytes; -1 if unbounded
}

// formatCommand matches %COMMAND(ARGUMENT):LENGTH%.
var formatCommand = regexp.MustCompile(`%([A-Z0-9_]+)(?:\((.*?)\))?(?::([0-9]+))?%`)

// compileFormat compiles a format that consists of one command.
func (p *Phase) compileFormat(at, text string) (*command, error) {
	m := formatCommand.FindStringSubmatch(text)
	if m == nil || m[0] != text {
		return nil, fmt.Errorf("%s: must be a single command, such as %%REQ(x-cost)%%", at)
	}
	c, err := p.compileCommand(m[1], m[2], m[3])
	if err != nil {
		return nil, fmt.Errorf("%s: %%%s%%: %w", at, m[1], err)
	}
	return &c, nil
}

func (p *Phase) compileCommand(name, argument, length string) (part command, err error) {
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

// headerValue returns the value of REQ or RESP, or false if there is none.
func (f *command) headerValue(req *Request) ([]byte, bool) {
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

func (f *command) cut(value []byte) []byte {
	if f.most >= 0 && len(value) > f.most {
		return value[:f.most]
	}
	return value
}
