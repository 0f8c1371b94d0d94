// Package actions makes the descriptors of a request as Envoy's HTTP ratelimit filter makes them, from the same
// configuration: the rate_limits of a route, or of the filter. It is for Weir inside Envoy, where no filter sends
// descriptors. It reads requests through an interface, and so knows neither Envoy nor C.
package actions
