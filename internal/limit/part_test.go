package limit

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Parts of at most 100 percent together never admit more than the limit, at once and in any window. There is no part if
// a number of hits would be below 10, or if the algorithm may admit a request beyond its rate.
func TestPartsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := limiter.Params{
			Algorithm: rapid.SampledFrom(limiter.Algorithms()).Draw(t, "algorithm"),
			Limit:     rapid.Int64Range(0, 9000).Draw(t, "limit"),
			Window:    time.Duration(rapid.Int64Range(1, step.MaxWindow.Milliseconds()).Draw(t, "window")) * time.Millisecond,
		}
		in.DenyAll = in.Limit == 0
		if in.Algorithm.Takes("burst") {
			in.Burst = rapid.Int64Range(0, 9000).Draw(t, "burst")
		}
		if in.Algorithm.Takes("segment_cap") {
			in.SegmentCap = rapid.Int64Range(0, in.Limit).Draw(t, "segment_cap")
		}
		whole, err := limiter.NewPolicy(in)
		if err != nil {
			t.Skip()
		}
		atOnce, inWindow := whole.Capacity(), Bound(whole, 1)
		for rest := int64(100); rest > 0; {
			percent := rapid.Int64Range(1, rest).Draw(t, "percent")
			rest -= percent
			isTooSmall := whole.Core().Overshoots
			for _, n := range []int64{in.Limit, in.Burst, in.SegmentCap} {
				isTooSmall = isTooSmall || n > 0 && n*percent < 10*100
			}
			params, err := Part(in, percent)
			if wrong := (*limiter.ParamError)(nil); errors.As(err, &wrong) != isTooSmall || !isTooSmall && err != nil {
				t.Fatalf("%d%% of %+v: error %v", percent, in, err)
			}
			if part, err := limiter.NewPolicy(params); !isTooSmall && err == nil {
				atOnce, inWindow = atOnce-part.Capacity(), inWindow-Bound(part, 1)
			}
		}
		if atOnce < 0 || inWindow < 0 {
			t.Errorf("the parts of %+v admit %d more at once, %d more in a window", in, -atOnce, -inWindow)
		}
	})
}
