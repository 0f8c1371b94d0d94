// Package actions builds the descriptors of a request as Envoy's HTTP ratelimit filter does, from the same
// configuration: the rate_limits of a route or of the filter. Weir uses it inside Envoy, where no filter sends
// descriptors. It depends on neither Envoy nor C.
//
// Its results equal the results of Envoy 1.40. A test compares both results for random configurations and requests. So
// a Plan's descriptors have the same counters as descriptors that Envoy sends over gRPC. docs/reference/actions.md
// lists the supported actions and fields.
//
// Names of headers are not case-sensitive; "host" means ":authority". If a header has several values,
// header_value_match requires that one of them matches, and with invert_match that none does. A regex must match the
// whole value. Envoy matches it byte by byte, so a non-ASCII letter counts as several characters. Bytes of a value that
// are not UTF-8 become a question mark, as in Envoy's gRPC requests.
//
// The format of hits_addend is one of the commands REQ (or REQUEST_HEADER), RESP (or RESPONSE_HEADER), which has no
// value before the response, and DYNAMIC_METADATA. Each may have a :LENGTH.
package actions
