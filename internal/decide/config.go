package decide

import "github.com/weir-ratelimit/weir/internal/flags"

// Config are the flags of decisions. A bound that is 0 stands for its default.
type Config struct {
	MaxDescriptors  int  `group:"grpc" env:"WEIR_MAX_DESCRIPTORS" default:"128" help:"Most descriptors in a request."`
	MaxCounters     int  `group:"grpc" env:"WEIR_MAX_COUNTERS" default:"1024" help:"Most limits that a request may charge, over all its descriptors; requests beyond fail with InvalidArgument."`
	MaxDelayed      int  `group:"grpc" env:"WEIR_MAX_DELAYED" default:"10000" help:"Most requests that leaky_queue and max_wait delay at once; requests beyond are denied."`
	DynamicMetadata bool `group:"grpc" env:"WEIR_DYNAMIC_METADATA" help:"Add dynamic metadata to every response, not only where a rule has metadata."`

	ChargeEach bool `group:"decide" env:"WEIR_CHARGE_EACH" help:"Charge each limit of a request by itself, also when another one denies the request. Without it, a denied request charges no limit that it fits."`

	RatelimitHeaders bool         `group:"headers" env:"WEIR_RATELIMIT_HEADERS" help:"Add response headers with the limit that is nearest to its end, as envoyproxy/ratelimit does with LIMIT_RESPONSE_HEADERS_ENABLED."`
	LimitHeaders     LimitHeaders `group:"headers" embed:"" prefix:"ratelimit-" envprefix:"WEIR_RATELIMIT_"`
	RetryAfter       bool         `group:"headers" env:"WEIR_RETRY_AFTER" default:"true" negatable:"" help:"Send Retry-After with each denial: how long to wait, or the window of a limit that no wait satisfies."`
}

// Check checks the flags.
func (c *Config) Check(e *flags.Errors) {
	flags.Between(e, "--max-delayed", c.MaxDelayed, 1, 10_000_000)
	flags.Between(e, "--max-descriptors", c.MaxDescriptors, 1, 10_000)
	flags.Between(e, "--max-counters", c.MaxCounters, 1, 1_000_000)
	if c.RatelimitHeaders {
		e.Header("--ratelimit-limit-header", c.LimitHeaders.Limit)
		e.Header("--ratelimit-remaining-header", c.LimitHeaders.Remaining)
		e.Header("--ratelimit-reset-header", c.LimitHeaders.Reset)
	}
}
