package limiter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// Each client may send 2 requests at once, and 1 a minute in the long run.
func Example() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	perClient, err := limiter.New(store, "client", limiter.NewTokenBucket(1, time.Minute, 2))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		d, err := perClient.Allow(context.Background(), "ann")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter.Round(time.Minute))
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 1m0s
}

// A burst limit and a daily limit that are charged together: a request that one of them denies is charged to neither.
func ExampleNew_severalPolicies() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	perDay := limiter.NewSlidingWindow(1000, 24*time.Hour)
	perDay.Segments = 24
	l, err := limiter.New(store, "client", limiter.NewFunnel(10, time.Second, 20), perDay)
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := l.AllowN(context.Background(), "ann", 25)
	fmt.Println(d.Allowed, d.RetryAfter == limiter.Never, err)
	// Output: false true <nil>
}

func ExampleLimiter_Wait() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	l, err := limiter.New(store, "jobs", limiter.NewFunnel(1, time.Hour, 0))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(l.Wait(ctx, "ann"))
	fmt.Println(l.Wait(ctx, "ann") != nil) // an hour is longer than the context's minute: it returns at once
	// Output:
	// <nil>
	// true
}

// The error names every parameter that is wrong.
func ExampleNewPolicy() {
	_, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: -1, Window: time.Minute, Burst: 5,
	})
	fmt.Println(err)
	// Output:
	// limit: must be between 0 and 281474976710656, got -1
	// burst: is not a parameter of fixed_window, which takes align, time_zone, charge_denied
}

// Each algorithm has a function that returns its Params. Set a field to replace its default.
func ExampleParams() {
	perDay := limiter.NewFixedWindow(1000, 24*time.Hour)
	perDay.Align = limiter.AlignCalendar
	for _, params := range []limiter.Params{
		perDay,
		limiter.NewSlidingWindow(100, time.Minute),
		limiter.NewSlidingLog(100, time.Minute),
		limiter.NewFunnel(100, time.Minute, 20),
		limiter.NewTokenBucket(100, time.Minute, 20),
		limiter.NewLeakyQueue(100, time.Minute, 5*time.Second),
		limiter.NewSmoothBursty(100, time.Minute, 5*time.Second),
		limiter.NewSmoothWarmingUp(100, time.Minute, 10*time.Second),
		limiter.NewConcurrency(100, time.Minute),
	} {
		policy, err := limiter.NewPolicy(params)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(policy.Algorithm(), policy.Capacity(), "at once")
	}
	// Output:
	// fixed_window 1000 at once
	// sliding_window 100 at once
	// sliding_log 100 at once
	// funnel 20 at once
	// token_bucket 20 at once
	// leaky_queue 100 at once
	// smooth_bursty 11 at once
	// smooth_warming_up 1 at once
	// concurrency 100 at once
}

// A budget of bytes: the first cost is an estimate, and Refund corrects it when the real cost is known.
func ExampleLimiter_Refund() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	perHour := limiter.NewFixedWindow(1<<20, time.Hour)
	perHour.Align = limiter.AlignFirstHit
	bytes, err := limiter.New(store, "upload", perHour)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	d, err := bytes.AllowN(ctx, "ann", 1<<19)
	fmt.Println(d.Allowed, d.Remaining, err)
	fmt.Println(bytes.Refund(ctx, "ann", 1<<18))
	d, err = bytes.AllowN(ctx, "ann", 1)
	fmt.Println(d.Allowed, d.Remaining, err)
	// Output:
	// true 524288 <nil>
	// <nil>
	// true 786431 <nil>
}

// At most two requests of a client are in flight. A request that is not released counts until the window ends.
func ExampleLimiter_Release() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	inFlight, err := limiter.New(store, "in_flight", limiter.NewConcurrency(2, time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for range 3 {
		d, err := inFlight.Allow(ctx, "ann")
		fmt.Println(d.Allowed, err)
	}
	fmt.Println(inFlight.Release(ctx, "ann", 1))
	d, err := inFlight.Allow(ctx, "ann")
	fmt.Println(d.Allowed, err)
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
	// <nil>
	// true <nil>
}

// A Limiter with two policies returns two decisions.
func ExampleLimiter_AllowEach() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	perSecond, perHour := limiter.NewFunnel(5, time.Second, 0), limiter.NewFunnel(3, time.Hour, 0)
	l, err := limiter.New(store, "client", perSecond, perHour)
	if err != nil {
		fmt.Println(err)
		return
	}
	all, err := l.AllowEach(context.Background(), "ann", 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range all {
		fmt.Println(d.Allowed, d.RetryAfter == limiter.Never)
	}
	// Output:
	// true false
	// false true
}

// A request whose limits are known only when it arrives: a limit per client, and a limit per path in shadow mode.
func ExampleStore() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	client, err := limiter.NewPolicy(limiter.NewFunnel(10, time.Second, 0))
	if err != nil {
		fmt.Println(err)
		return
	}
	path, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, DenyAll: true, Window: time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	hits := []limiter.Hit{
		{Key: "client|ann", Policy: client, N: 1},
		{Key: "path|/login", Policy: path, N: 1, Mode: limiter.Shadow},
	}
	out := make([]limiter.Decision, len(hits))
	if err := store.Take(context.Background(), hits, out); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(out[0].Allowed, out[1].Allowed, limiter.Admitted(hits, out))
	// Output: true false true
}

func ExampleParseAlgorithm() {
	algorithm, err := limiter.ParseAlgorithm("token_bucket")
	fmt.Println(algorithm, algorithm.Takes("burst"), err)
	// Output: token_bucket true <nil>
}
