package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// workload is a set of requests, the rules that answer them, and what share of them is to be denied.
type workload struct {
	name        string // also its domain
	about       string
	keys        int
	zipf        float64 // exponent of the keys' distribution; 0 is uniform
	descriptors int     // of a request
	rules       int     // key k asks the rule k % rules
	tight       []int   // rules that are used up by one request a year; the others never are

	encoded *requests // what encode has returned
}

const (
	never = 1_000_000_000 // per hour: more than any run asks
	// zipfOffset is the v of rand.NewZipf: the probability of key k falls with (v+k)^-s.
	zipfOffset = 1
)

// workloads are those of the project's performance goals. W4's tight rules hold the keys of ranks 3, 4, 10, 20 and
// 50, some of the hottest, and every hundredth behind each: 10.4 % of the requests, however fast they come.
var workloads = []workload{
	{name: "w1", about: "1 descriptor, 10,000 uniform keys, all OK", keys: 10_000, descriptors: 1, rules: 1},
	{name: "w2", about: "as w1, all over the limit", keys: 10_000, descriptors: 1, rules: 1, tight: []int{0}},
	{name: "w3", about: "4 descriptors, a rule for each, all OK", keys: 10_000, descriptors: 4, rules: 1},
	{name: "hot", about: "as w1 with 100 keys", keys: 100, descriptors: 1, rules: 1},
	{name: "rules", about: "100,000 uniform keys, 1,000 rules, all OK", keys: 100_000, descriptors: 1, rules: 1000},
	{
		name: "w4", about: "Zipf(1.1) over 1,000,000 keys, 100 rules, about 10 % over the limit",
		keys: 1_000_000, zipf: 1.1, descriptors: 1, rules: 100, tight: []int{2, 3, 9, 19, 49},
	},
}

func workloadNamed(name string) (*workload, error) {
	i := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
	if i < 0 {
		return nil, fmt.Errorf("no workload %q: there are w1, w2, w3, w4, hot, rules, each also as w1c1, and w5", name)
	}
	return &workloads[i], nil
}

// isTight says whether key k is over its limit from the second request on.
func (w *workload) isTight(k int) bool { return slices.Contains(w.tight, k%w.rules) }

// tightKeys are the keys that must be asked once before the workload is as its name says.
func (w *workload) tightKeys() []int {
	var keys []int
	if len(w.tight) == 0 {
		return nil
	}
	for k := range w.keys {
		if w.isTight(k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// deniedShare is the share of requests that are over the limit once all tight keys have been asked.
func (w *workload) deniedShare() float64 {
	var denied, all float64
	for k := range w.keys {
		p := 1.0
		if w.zipf > 0 {
			p = math.Pow(float64(zipfOffset+k), -w.zipf)
		}
		all += p
		if w.isTight(k) {
			denied += p
		}
	}
	return denied / all
}

// picker returns a source of keys. Workers with different seeds draw different ones.
func (w *workload) picker(seed uint64) func() int {
	rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // the same keys in every run are wanted
	if w.zipf == 0 {
		return func() int { return rng.IntN(w.keys) }
	}
	zipf := rand.NewZipf(rng, w.zipf, zipfOffset, uint64(w.keys-1)) //nolint:gosec // there are keys
	return func() int { return int(zipf.Uint64()) }                 //nolint:gosec // below keys
}

// ruleKey is the key of descriptor i of a request that asks the given rule.
func ruleKey(i, rule int) string { return "d" + strconv.Itoa(i) + "_" + strconv.Itoa(rule) }

// ruleFile is the workload's rules, each limit with further fields. Without such it is a file that
// envoyproxy/ratelimit reads, too.
func (w *workload) ruleFile(fields string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", w.name)
	for i := range w.descriptors {
		for r := range w.rules {
			limit := fmt.Sprintf("requests_per_unit: %d, unit: hour", never)
			if slices.Contains(w.tight, r) {
				limit = "requests_per_unit: 1, unit: year"
			}
			if fields != "" {
				limit += ", " + fields
			}
			fmt.Fprintf(&b, "  - key: %s\n    rate_limit: {%s}\n", ruleKey(i, r), limit)
		}
	}
	return b.String()
}

// writeRules writes one rule file a workload, as envoyproxy/ratelimit wants them.
func writeRules(dir, fields string) error {
	for i := range workloads {
		w := &workloads[i]
		err := os.WriteFile(filepath.Join(dir, w.name+".yaml"), []byte(w.ruleFile(fields)), 0o600)
		if err != nil {
			return err
		}
	}
	return nil
}

// request is the message that asks for key k.
func (w *workload) request(k int) *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: w.name}
	for i := range w.descriptors {
		req.Descriptors = append(req.Descriptors, &commonpb.RateLimitDescriptor{
			Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: ruleKey(i, k%w.rules), Value: "k" + strconv.Itoa(k)}},
		})
	}
	return req
}

// requests are the encoded requests of all keys, in one piece of memory that the garbage collector need not look
// into.
type requests struct {
	bytes []byte
	ends  []uint32
}

// encode returns the request of each key as bytes.
func (w *workload) encode() (*requests, error) {
	if w.encoded != nil {
		return w.encoded, nil
	}
	r := &requests{ends: make([]uint32, w.keys)}
	var err error
	for k := range w.keys {
		if r.bytes, err = (proto.MarshalOptions{}).MarshalAppend(r.bytes, w.request(k)); err != nil {
			return nil, err
		}
		r.ends[k] = uint32(len(r.bytes)) //nolint:gosec // a million requests are some 30 MB
	}
	w.encoded = r
	return r, nil
}

func (r *requests) at(k int) []byte {
	var from uint32
	if k > 0 {
		from = r.ends[k-1]
	}
	return r.bytes[from:r.ends[k]:r.ends[k]]
}
