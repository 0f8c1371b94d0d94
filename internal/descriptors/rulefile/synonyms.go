package rulefile

import (
	"strings"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// What people write for a field of Weir, because other products call it so.
var (
	documentSynonyms   = map[string]string{"rules": "descriptors", "limits": "descriptors", "descriptor": "descriptors"}
	descriptorSynonyms = map[string]string{
		"limit": "rate_limit", "ratelimit": "rate_limit", "limits": "rate_limits", "ratelimits": "rate_limits",
		"shadow": "shadow_mode", "dry_run": "shadow_mode", "match": "value", "pattern": "value", "ip": "cidr",
		"rules": "descriptors",
	}
	rateLimitSynonyms = map[string]string{
		"limit": "requests_per_unit", "requests": "requests_per_unit", "rate": "requests_per_unit",
		"count":        "requests_per_unit",
		"max_requests": "requests_per_unit", "request_per_unit": "requests_per_unit",
		"per": "unit", "time_unit": "unit", "interval": "window", "period": "window", "duration": "window",
		"capacity": "burst", "burst_size": "burst", "max_burst": "burst", "type": "algorithm", "strategy": "algorithm",
		"timezone": "time_zone",
	}
)

// algorithmSynonyms are names of other products and textbooks.
var algorithmSynonyms = map[string]limiter.Algorithm{
	"gcra": limiter.Funnel, "leaky_bucket": limiter.Funnel, "bucket": limiter.TokenBucket, "token": limiter.TokenBucket,
	"fixed": limiter.FixedWindow, "window": limiter.FixedWindow, "fixed_window_counter": limiter.FixedWindow,
	"sliding": limiter.SlidingWindow, "sliding_window_counter": limiter.SlidingWindow,
	"rolling_window":     limiter.SlidingWindow,
	"sliding_window_log": limiter.SlidingLog, "log": limiter.SlidingLog,
	"semaphore": limiter.Concurrency, "concurrent": limiter.Concurrency, "max_in_flight": limiter.Concurrency,
	"bursty": limiter.SmoothBursty, "warming_up": limiter.SmoothWarmingUp, "warm_up": limiter.SmoothWarmingUp,
	"queue": limiter.LeakyQueue,
}

// algorithmMeant is the algorithm that an unknown name seems to stand for, empty if there is none.
func algorithmMeant(name string) string {
	plain := strings.NewReplacer("-", "_", " ", "_").Replace(strings.ToLower(strings.TrimSpace(name)))
	if a, err := limiter.ParseAlgorithm(plain); err == nil {
		return a.String()
	}
	if a, ok := algorithmSynonyms[plain]; ok {
		return a.String()
	}
	return words.Nearest(plain, limit.AlgorithmNames())
}
