//go:build e2e

package peer

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"testing"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// request reads a request in short: descriptors separated by spaces, their entries by commas. A descriptor may end in
// its limit, as in a=x@10/MINUTE, and then in its hits, as in a=x+5. hits:3 are those of the request.
func request(t *testing.T, domain, text string) *pb.RateLimitRequest {
	t.Helper()
	req := &pb.RateLimitRequest{Domain: domain}
	for word := range strings.FieldsSeq(text) {
		if hits, ok := strings.CutPrefix(word, "hits:"); ok {
			req.HitsAddend = uint32(number(t, hits, 32))
			continue
		}
		req.Descriptors = append(req.Descriptors, descriptor(t, word))
	}
	return req
}

func descriptor(t *testing.T, text string) *commonpb.RateLimitDescriptor {
	t.Helper()
	d := &commonpb.RateLimitDescriptor{}
	text, hits, ok := strings.Cut(text, "+")
	if ok {
		d.HitsAddend = wrapperspb.UInt64(number(t, hits, 64))
	}
	text, limit, ok := strings.Cut(text, "@")
	if ok {
		rate, unit, _ := strings.Cut(limit, "/")
		d.Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: uint32(number(t, rate, 32)),
			Unit:            typepb.RateLimitUnit(typepb.RateLimitUnit_value[unit]),
		}
	}
	for entry := range strings.SplitSeq(text, ",") {
		if entry == "()" { // a descriptor without entries
			continue
		}
		key, value, _ := strings.Cut(entry, "=")
		d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

func number(t *testing.T, text string, bits int) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, bits)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// short writes an answer in short, without times: the code, then each status as code, remaining, limit and name or
// unit, then headers that have no time.
func (a *answer) short() string {
	if a.err != nil {
		return "error"
	}
	words := []string{a.resp.GetOverallCode().String()}
	for _, s := range a.resp.GetStatuses() {
		word := "- " + s.GetCode().String()
		if l := s.GetCurrentLimit(); l != nil {
			word += fmt.Sprintf(" %d/%d %s",
				s.GetLimitRemaining(), l.GetRequestsPerUnit(), cmp.Or(l.GetName(), l.GetUnit().String()))
		} else if s.GetLimitRemaining() != 0 {
			word += fmt.Sprintf(" %d", s.GetLimitRemaining())
		}
		words = append(words, word)
	}
	for _, h := range a.resp.GetResponseHeadersToAdd() {
		if h.GetKey() != "RateLimit-Reset" && h.GetKey() != "Retry-After" {
			words = append(words, h.GetKey()+"="+h.GetValue())
		}
	}
	return strings.Join(words, " ")
}
