// Package actions makes the descriptors of a request as Envoy's HTTP ratelimit filter makes them, from the same
// configuration: the rate_limits of a route, or of the filter. It is for Weir inside Envoy, where no filter sends
// descriptors. It knows neither Envoy nor C.
//
// What it does is what Envoy 1.40 does. A test compares both on random configurations and requests. So the descriptors
// of a Plan have the same counters as those that come from Envoy by gRPC. docs/reference/actions.md lists the actions
// and fields, and what is refused.
//
// Names of headers are matched without regard to case; "host" means ":authority". If a header has several values,
// header_value_match needs one that matches, and with invert_match none that does. A regex must match the whole value.
// Envoy reads it byte by byte: a letter beyond ASCII is several characters. Bytes of a value that are not UTF-8 become
// a question mark, as with Envoy's requests by gRPC.
//
// The format of hits_addend is one of the commands REQ (or REQUEST_HEADER), RESP (RESPONSE_HEADER), of which there is
// nothing before the response, and DYNAMIC_METADATA. Each may have a :LENGTH.
package actions
