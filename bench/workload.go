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

// workload is a set of requests, with their rules and the share of requests to be denied.
type workload struct {
	name        string // and its domain
	about       string
	keys        int
	zipf        float64 // exponent of the keys' distribution; 0 for uniform
	descriptors int     // per request
	rules       int     // key k matches rule k % rules
	tight       []int   // rules with a limit of one request per year; other limits are never reached

	encoded *requests // cached result of encode
}

const (
	never = 1_000_000_000 // per hour; above any run's number of requests
	// zipfOffset is the v of rand.NewZipf: the probability of key k is proportional to (v+k)^-s.
	zipfOffset = 1
)

// workloads are the workloads of the project's performance goals. W4's tight rules have the keys of ranks 3, 4, 10, 20
// and 50, some of the most frequent, and every hundredth key after each: 10.4 % of the requests at any rate.
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
		return nil, fmt.Errorf("no workload %q: there are w1, w2, w3, w4, hot, rules, each also as w1c1", name)
	}
	return &workloads[i], nil
}

// isTight reports whether key k is over its limit from the second request on.
func (w *workload) isTight(k int) bool { return slices.Contains(w.tight, k%w.rules) }

// tightKeys returns the keys that must be requested once before the measurement.
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

// deniedShare returns the share of requests over the limit after all tight keys have been requested.
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

// picker returns a source of keys. Different seeds give different keys.
func (w *workload) picker(seed uint64) func() int {
	rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // the same keys in every run are wanted
	if w.zipf == 0 {
		return func() int { return rng.IntN(w.keys) }
	}
	zipf := rand.NewZipf(rng, w.zipf, zipfOffset, uint64(w.keys-1)) //nolint:gosec // there are keys
	return func() int { return int(zipf.Uint64()) }                 //nolint:gosec // below keys
}

// ruleKey returns the key of descriptor i of a request for this rule.
func ruleKey(i, rule int) string { return "d" + strconv.Itoa(i) + "_" + strconv.Itoa(rule) }

// ruleFile returns the workload's rules, with additional fields in each limit. Without additional fields,
// envoyproxy/ratelimit can read it, too.
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

// writeRules writes a rule file per workload, in the layout that envoyproxy/ratelimit needs.
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

// request returns the request of key k.
func (w *workload) request(k int) *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: w.name}
	for i := range w.descriptors {
		req.Descriptors = append(req.Descriptors, &commonpb.RateLimitDescriptor{
			Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: ruleKey(i, k%w.rules), Value: "k" + strconv.Itoa(k)}},
		})
	}
	return req
}

// requests are the encoded requests of all keys, in one block of memory without pointers, which the garbage collector
// need not scan.
type requests struct {
	bytes []byte
	ends  []uint32
}

// encode returns the encoded requests of all keys.
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
