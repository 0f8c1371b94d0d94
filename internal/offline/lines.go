package offline

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// maxLine is the maximum length of a line, in bytes.
const maxLine = 64 << 10

// eachLine calls do with each line and its number, until the input ends or do fails. A line longer than maxLine is nil.
func eachLine(in io.Reader, do func(number int64, line []byte) error) error {
	r := bufio.NewReaderSize(in, maxLine+len("\r\n"))
	for number := int64(1); ; number++ {
		line, more, err := r.ReadLine()
		for more && err == nil {
			line = nil
			_, more, err = r.ReadLine()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = do(number, line)
		}
		if err != nil {
			return err
		}
	}
}

// Mapping describes how an entry of Envoy's descriptors is derived from the access log.
type Mapping struct {
	Key string
	// Field is the log field with the value. If it is empty, the value is Value.
	Field, Value string
}

// ParseMappings parses the entries of one descriptor, such as key=field,key="value".
func ParseMappings(text string) (all []Mapping, err error) {
	entries, err := descriptors.ParseEntries(text)
	for _, e := range entries {
		m := Mapping{Key: e.Key, Field: e.Value}
		if value, ok := strings.CutPrefix(e.Value, `"`); ok {
			m.Field = ""
			if m.Value, ok = strings.CutSuffix(value, `"`); !ok {
				return nil, fmt.Errorf(`%q has a quote that does not end; write key="value"`, text)
			}
		} else if e.Value == "" {
			err = errors.New("a field is missing")
		}
		all = append(all, m)
	}
	if err != nil {
		return nil, fmt.Errorf(`%q: write key=field, such as remote_address=downstream_remote_address, several with commas `+
			`for one descriptor of several entries, or key="value" for a fixed one`, text)
	}
	return all, nil
}

// parse parses a line of JSON. Its request has no descriptors if Envoy would not call Weir.
func (r *reader) parse(text []byte) (*recorded, error) {
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	at, err := moment(r.TimeField, lookUp(fields, r.TimeField))
	if err != nil {
		return nil, err
	}
	q := &recorded{Request: Request{At: at, Domain: r.Domain}}
	for _, ms := range r.Mappings {
		if entries, ok := entriesOf(fields, ms); ok {
			q.Descriptors = append(q.Descriptors, decide.Descriptor{Entries: entries, Cost: 1})
		}
	}
	return q, nil
}

// entriesOf returns a descriptor's entries. As in Envoy, there is no descriptor if one of its fields is missing.
func entriesOf(fields map[string]any, ms []Mapping) (entries []descriptors.Entry, ok bool) {
	for _, m := range ms {
		value := m.Value
		if m.Field != "" {
			if value = valueText(lookUp(fields, m.Field)); value == "" || value == "-" {
				return nil, false
			}
		}
		if m.Key == "remote_address" { // an access log has the port, Envoy's descriptor does not
			if addr, err := netip.ParseAddrPort(value); err == nil {
				value = addr.Addr().String()
			}
		}
		entries = append(entries, descriptors.Entry{Key: m.Key, Value: value})
	}
	return entries, true
}

// lookUp finds a field by its name, or by the names of its enclosing objects and its own, joined by dots.
func lookUp(fields map[string]any, name string) any {
	if v, ok := fields[name]; ok {
		return v
	}
	outer, inner, ok := strings.Cut(name, ".")
	if object, is := fields[outer].(map[string]any); ok && is {
		return lookUp(object, inner)
	}
	return nil
}

func valueText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	default:
		return ""
	}
}

// maxMoment is the end of the times for which limits count exactly, in microseconds since the Unix epoch: in 2112.
const maxMoment = 1 << 52

// moment parses a time from 1970 to 2112: RFC 3339, or a number of seconds since 1970.
func moment(field string, v any) (int64, error) {
	text := valueText(v)
	if text == "" {
		return 0, fmt.Errorf("no field %s with the time; name another field with --time-field", field)
	}
	at := math.NaN()
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		at = float64(t.UnixMicro()) // exact below maxMoment
	} else if n, err := strconv.ParseFloat(text, 64); err == nil {
		at = math.Round(n * 1e6)
	}
	if !(at >= 0 && at < maxMoment) {
		return 0, fmt.Errorf("%s: %q is neither a time such as 2026-01-31T12:00:00.000Z nor a number of seconds since 1970, "+
			"before 2112", field, text)
	}
	return int64(at), nil
}
