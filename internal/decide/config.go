package decide

import "github.com/weir-ratelimit/weir/internal/flags"

// Config has the flags for decisions. A bound of 0 means the default.
type Config struct {
	MaxDescriptors  int  `group:"grpc" env:"WEIR_MAX_DESCRIPTORS" default:"128" help:"Maximum number of descriptors of a request."`
	MaxCounters     int  `group:"grpc" env:"WEIR_MAX_COUNTERS" default:"1024" help:"Maximum number of limits of a request, over all its descriptors; larger requests fail with InvalidArgument."`
	MaxDelayed      int  `group:"grpc" env:"WEIR_MAX_DELAYED" default:"10000" help:"Maximum number of requests that leaky_queue and max_wait delay at once; others are denied."`
	DynamicMetadata bool `group:"grpc" env:"WEIR_DYNAMIC_METADATA" help:"Add dynamic metadata to every response, not only if a rule has metadata."`

	ChargeEach bool `group:"decide" env:"WEIR_CHARGE_EACH" help:"Charge every limit of a request, not only the limits that deny it."`

	RatelimitHeaders bool         `group:"headers" env:"WEIR_RATELIMIT_HEADERS" help:"Add response headers for the limit with the fewest remaining requests, like LIMIT_RESPONSE_HEADERS_ENABLED of envoyproxy/ratelimit."`
	LimitHeaders     LimitHeaders `group:"headers" embed:"" prefix:"ratelimit-" envprefix:"WEIR_RATELIMIT_"`
	RetryAfter       bool         `group:"headers" env:"WEIR_RETRY_AFTER" default:"true" negatable:"" help:"Send Retry-After with each denial: seconds to wait, or the length of the window if waiting does not help."`
}

// Check validates the flags.
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
