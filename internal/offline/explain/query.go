package explain

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Query is the question as GET /explain takes it: ?domain=..&descriptor=key=value,key=value&descriptor=..&hits=1.
func Query(q Question) url.Values {
	v := url.Values{"domain": {q.Domain}, "hits": {strconv.FormatUint(uint64(max(q.Hits, 1)), 10)}}
	for _, entries := range q.Descriptors {
		v.Add("descriptor", descriptors.FormatEntries(entries))
	}
	return v
}

// ParseQuery reads what Query writes. Hits are 1 if left out. The error says all that is wrong.
func ParseQuery(v url.Values) (Question, error) {
	q := Question{Domain: v.Get("domain"), Hits: 1}
	var errs []error
	for name := range v {
		if name != "domain" && name != "descriptor" && name != "hits" {
			errs = append(errs,
				fmt.Errorf("%s is not known; ask /explain?domain=shop&descriptor=key=value,key=value&hits=1", strconv.Quote(name)))
		}
	}
	if text := v.Get("hits"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n == 0 {
			errs = append(errs, fmt.Errorf("hits: must be a whole number from 1 to 4294967295, got %q", text))
		}
		q.Hits = uint32(n)
	}
	for i, text := range v["descriptor"] {
		entries, err := descriptors.ParseEntries(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("descriptor %d: %w", i+1, err))
		}
		q.Descriptors = append(q.Descriptors, entries)
	}
	if len(q.Descriptors) == 0 {
		errs = append(errs,
			errors.New("descriptor: is missing; write descriptor=key=value,key=value for each of the request's"))
	}
	return q, errors.Join(errs...)
}
