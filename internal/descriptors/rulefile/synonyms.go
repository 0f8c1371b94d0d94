package rulefile

// Names that other products use for fields of Weir.
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
	algorithmSynonyms = map[string]string{"gcra": "funnel", "leaky_bucket": "funnel", "semaphore": "concurrency"}
)
