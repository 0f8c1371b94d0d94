package rls

import (
	"context"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// compileFor is compile for a process.
func compileFor(tb testing.TB, process descriptors.Process, yaml string) *descriptors.Set {
	tb.Helper()
	set, err := rulefile.CompileFor(process, []rulefile.File{{Name: "rules.yaml", Data: []byte(yaml)}})
	if err != nil {
		tb.Fatalf("rules do not compile: %v", err)
	}
	return set
}

// inBoth runs the test with a service that counts in memory and with one that counts in Redis, both by rules of that
// process.
func inBoth(
	t *testing.T, process descriptors.Process, rules string, change func(*options), test func(t *testing.T, s *Service),
) {
	t.Helper()
	set := compileFor(t, process, rules)
	for _, name := range []string{"memory", "redis"} {
		t.Run(name, func(t *testing.T) {
			s, _ := service(t, rules, func(o *options) {
				o.Rules = func() *descriptors.Set { return set }
				if name == "redis" {
					const timeout = 5 * time.Second
					store, err := redisstore.New(redistest.Client(t, redistest.Start(t).URL(), timeout),
						redisstore.Options{Timeout: timeout})
					if err != nil {
						t.Fatal(err)
					}
					o.Store = store
				}
				if change != nil {
					change(o)
				}
			})
			test(t, s)
		})
	}
}

// codesOf is each status of the answer: + for OK, - for OVER_LIMIT, behind that of the request as a whole.
func codesOf(res *pb.RateLimitResponse) string {
	sign := map[pb.RateLimitResponse_Code]string{pb.RateLimitResponse_OK: "+", pb.RateLimitResponse_OVER_LIMIT: "-"}
	text := sign[res.GetOverallCode()] + " "
	for _, st := range res.GetStatuses() {
		text += sign[st.GetCode()]
	}
	return text
}

// wantCodes asks, and compares the codes and what remains of each descriptor.
func wantCodes(t *testing.T, s *Service, want string, left []uint32, ds ...*commonpb.RateLimitDescriptor) {
	t.Helper()
	res := ask(t, s, request(ds...))
	if got := codesOf(res); got != want {
		t.Errorf("got %s, want %s: %s", got, want, show(res))
	}
	for i, n := range left {
		if got := res.GetStatuses()[i].GetLimitRemaining(); got != n {
			t.Errorf("descriptor %d has %d left, want %d: %s", i, got, n, show(res))
		}
	}
}

const chargeRules = `
domain: shop
descriptors:
  - {key: narrow, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: wide, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 100}}
  - {key: small, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: large, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
`

// With ChargeEach a denied request is charged to each of its limits, wherever the one that denies stands.
func TestChargeEach(t *testing.T) {
	inBoth(t, descriptors.Process{}, chargeRules, func(o *options) { o.ChargeEach = true },
		func(t *testing.T, s *Service) {
			narrow, wide, bucket := descriptor("narrow=a"), descriptor("wide=a"), descriptor("bucket=a")
			three := func(n uint64, d *commonpb.RateLimitDescriptor) *commonpb.RateLimitDescriptor {
				return costing(n, descriptor(d.GetEntries()[0].GetKey()+"=a"))
			}
			wantCodes(t, s, "+ +++", []uint32{99, 1, 99}, wide, narrow, bucket)
			wantCodes(t, s, "- +-+", []uint32{96, 0, 96}, three(3, wide), three(3, narrow), three(3, bucket))
			wantCodes(t, s, "- ++-", []uint32{95, 95, 0}, wide, bucket, narrow)
			wantCodes(t, s, "- -", []uint32{0}, three(99, wide))
			wantCodes(t, s, "- -", []uint32{0}, wide)
			// Costs at the end of a stream, over three limits of which one is over.
			wantCodes(t, s, "- +-+", []uint32{80, 0, 80}, costing(20, descriptor("wide=b")),
				costing(20, descriptor("narrow=b")), costing(20, descriptor("bucket=b")))
			// A quota that does not fit beside one that does is used up.
			quotas := func() []*commonpb.RateLimitDescriptor {
				return []*commonpb.RateLimitDescriptor{costing(8, descriptor("small=a")), costing(8, descriptor("large=a"))}
			}
			wantCodes(t, s, "+ ++", []uint32{2, 992}, quotas()...)
			wantCodes(t, s, "+ -+", []uint32{0, 984}, quotas()...)
			wantCodes(t, s, "- -", []uint32{0}, descriptor("small=a"))
		})
}

// Without it a denied request costs nothing but the limit that denied it.
func TestChargeAsAWhole(t *testing.T) {
	inBoth(t, descriptors.Process{}, chargeRules, nil, func(t *testing.T, s *Service) {
		wantCodes(t, s, "+ ++", []uint32{99, 1}, descriptor("wide=a"), descriptor("narrow=a"))
		wantCodes(t, s, "- +-", []uint32{99, 0}, costing(3, descriptor("wide=a")), costing(3, descriptor("narrow=a")))
	})
}

// A cost of 0 is admitted at exactly the limit only with LookAtLimit.
func TestLookAtLimit(t *testing.T) {
	for _, allow := range []bool{false, true} {
		at, none := "- -", "- -"
		if allow {
			at, none = "+ +", "+ +"
		}
		inBoth(t, descriptors.Process{LookAtLimit: allow}, chargeRules, nil, func(t *testing.T, s *Service) {
			look := func(key string) *commonpb.RateLimitDescriptor { return costing(0, descriptor(key+"=a")) }
			wantCodes(t, s, "+ +", []uint32{2}, look("narrow"))
			wantCodes(t, s, "+ +", []uint32{0}, costing(2, descriptor("narrow=a")))
			wantCodes(t, s, at, []uint32{0}, look("narrow"))
			wantCodes(t, s, none, []uint32{0}, look("none"))
			wantCodes(t, s, "- -", []uint32{0}, descriptor("narrow=a"))
			wantCodes(t, s, "- -", []uint32{0}, look("narrow")) // 3 are counted
			wantCodes(t, s, none, nil, limited(0, 6, look("override")))
		})
	}
}

// A process in shadow mode denies nothing, one in quota mode only what is over all of its limits.
func TestModesOfAProcess(t *testing.T) {
	two := []*commonpb.RateLimitDescriptor{costing(5, descriptor("narrow=a")), costing(5, descriptor("wide=a"))}
	over := limited(0, 6, descriptor("override=a"))
	inBoth(t, descriptors.Process{ShadowMode: true}, chargeRules, nil, func(t *testing.T, s *Service) {
		wantCodes(t, s, "+ ++", []uint32{0, 95}, two...)
		wantCodes(t, s, "+ +", []uint32{0}, descriptor("narrow=a"))
		wantCodes(t, s, "+ +", nil, over)
	})
	inBoth(t, descriptors.Process{QuotaMode: true}, chargeRules, nil, func(t *testing.T, s *Service) {
		wantCodes(t, s, "+ -+", []uint32{0, 95}, two...)
		wantCodes(t, s, "- -", []uint32{0}, descriptor("narrow=a"))
		wantCodes(t, s, "- -", nil, over)
		wantCodes(t, s, "+ -+", nil, over, descriptor("wide=a"))
	})
}

// While the store fails, a limit with on_store_failure: error fails the request, unless another one denies it.
func TestStoreFailsWithError(t *testing.T) {
	const rules = `
domain: shop
descriptors:
  - {key: fails, rate_limit: {unit: minute, requests_per_unit: 5, on_store_failure: error}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5, on_store_failure: error}}
  - {key: denies, rate_limit: {unit: minute, requests_per_unit: 5, on_store_failure: deny}}
  - {key: passes, rate_limit: {unit: minute, requests_per_unit: 5, on_store_failure: allow}}
  - {key: default, rate_limit: {unit: minute, requests_per_unit: 5}}
`
	fails, passes, denies := descriptor("fails=a"), descriptor("passes=a"), descriptor("denies=a")
	tests := []struct {
		name string
		req  *pb.RateLimitRequest
		want string // empty: an error
	}{
		{"alone", request(fails), ""},
		{"by the process", request(descriptor("default=a")), ""},
		{"beside one that fails open", request(passes, fails), ""},
		{"beside one that fails closed", request(fails, denies), "- +-"},
		{"in shadow mode", request(descriptor("trial=a")), "+ +"},
		{"in shadow mode beside another", request(descriptor("trial=a"), passes), "+ ++"},
		{"a look", request(costing(0, descriptor("fails=a"))), ""},
		{"a refund", request(negative(descriptor("fails=a"))), "+ +"},
		{"no limit", request(descriptor("nobody=knows")), "+ +"},
	}
	set := compileFor(t, descriptors.Process{OnStoreFailure: descriptors.Fail}, rules)
	rec := &recorder{}
	s, _ := service(t, rules, func(o *options) {
		o.Rules, o.Store, o.Observer = func() *descriptors.Set { return set }, storeFunc(down), rec
	})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rec.take()
			res, err := send(context.Background(), s, tt.req)
			if tt.want != "" {
				if err != nil || codesOf(res) != tt.want {
					t.Errorf("got %s, %v; want %s", show(res), err, tt.want)
				}
				return
			}
			const why = "the store did not answer, and on_store_failure is error"
			if st := status.Convert(err); st.Code() != codes.Unavailable || st.Message() != why {
				t.Errorf("got %s, %v; want Unavailable: %s", show(res), err, why)
			}
			if said := rec.take(); len(said) != 2 || said[1] != "rejected Unavailable" {
				t.Errorf("observed %q, want that the store failed, and the error", said)
			}
		})
	}
}

// Without Retry-After a denial has no such header, and keeps the others.
func TestNoRetryAfter(t *testing.T) {
	for _, without := range []bool{false, true} {
		s, _ := service(t, chargeRules, func(o *options) {
			o.NoRetryAfter = without
			o.LimitHeaders.Limit, o.LimitHeaders.Remaining, o.LimitHeaders.Reset = "L", "R", "S"
		})
		ask(t, s, request(costing(2, descriptor("narrow=a"))))
		headers := ask(t, s, request(descriptor("narrow=a"))).GetResponseHeadersToAdd()
		has := false
		for _, h := range headers {
			has = has || h.GetKey() == "Retry-After"
		}
		if has == without || len(headers) < 3 {
			t.Errorf("NoRetryAfter %t: headers %v", without, headers)
		}
	}
}

// The reset of a fixed window is its end for a ban, and for a look at a counter that nothing was counted in: also in
// the header.
func TestResetIsTheWindowsEnd(t *testing.T) {
	s, c := service(t, `
domain: shop
descriptors:
  - {key: ban, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: fresh, rate_limit: {unit: minute, requests_per_unit: 5}}
`, func(o *options) { o.LimitHeaders.Limit, o.LimitHeaders.Remaining, o.LimitHeaders.Reset = "L", "R", "S" })
	c.advance(20 * time.Second)
	for _, tt := range []struct{ req, want string }{
		{"ban", "OVER_LIMIT | OVER_LIMIT 0/minute left 0 reset 40s | L: 0 | R: 0 | S: 40"},
		{"fresh", "OK | OK 5/minute left 5 reset 40s | L: 5 | R: 5 | S: 40"},
	} {
		d := descriptor(tt.req + "=a")
		if tt.req == "fresh" {
			d = costing(0, d)
		}
		got := show(ask(t, s, request(d)))
		if got != tt.want {
			t.Errorf("\n got %s\nwant %s", got, tt.want)
		}
	}
}

// A lenient process answers descriptors without entries and entries without a key as those that no rule matches, where
// others answer InvalidArgument.
func TestLenientRequests(t *testing.T) {
	for _, d := range []*commonpb.RateLimitDescriptor{{}, descriptor("=a"), descriptor("narrow=a", "=b")} {
		s, _ := service(t, chargeRules)
		if _, err := send(context.Background(), s, request(d)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: got %v, want InvalidArgument", d, err)
		}
		s, _ = service(t, chargeRules, func(o *options) { o.Lenient = true })
		wantCodes(t, s, "+ ++", []uint32{0, 99}, d, descriptor("wide=a"))
		wantCodes(t, s, "- -", nil, limited(0, 6, d))
	}
}
