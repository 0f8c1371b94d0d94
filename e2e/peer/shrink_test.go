//go:build e2e

package peer

import (
	"fmt"
	"slices"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// shrink returns a short case in which the two still differ: the requests that the case's last needs before it. Each
// attempt asks a copy of the domain, whose counters are fresh.
func (c *randomCase) shrink(t *testing.T, settings env) *randomCase {
	t.Helper()
	files := map[string]string{}
	copies := 2 * len(c.requests)
	for i := range copies {
		domain := fmt.Sprintf("%s-%d", c.domain, i)
		files[domain+".yaml"] = ruleFile(domain, c.rules)
	}
	p := startPair(t, writeRules(t, files), settings)
	used := 0
	differ := func(requests []*pb.RateLimitRequest) bool {
		used++
		try := &randomCase{rules: c.rules}
		for _, req := range requests {
			req = proto.CloneOf(req)
			req.Domain = fmt.Sprintf("%s-%d", c.domain, used-1)
			try.requests = append(try.requests, req)
		}
		at, diff, _ := p.run(t.Context(), try)
		return len(diff) > 0 && at == len(requests)-1
	}
	short := slices.Clone(c.requests)
	for i := len(short) - 2; i >= 0; i-- {
		if without := slices.Delete(slices.Clone(short), i, i+1); differ(without) {
			short = without
		}
	}
	for i := len(short[len(short)-1].GetDescriptors()) - 1; i >= 0 && used < copies; i-- {
		last := proto.CloneOf(short[len(short)-1])
		last.Descriptors = slices.Delete(last.GetDescriptors(), i, i+1)
		if without := append(slices.Clone(short[:len(short)-1]), last); len(last.GetDescriptors()) > 0 && differ(without) {
			short = without
		}
	}
	return &randomCase{number: c.number, domain: c.domain, rules: c.rules, requests: short}
}
