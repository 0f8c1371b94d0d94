// Package actions makes the descriptors of a request as Envoy's HTTP ratelimit filter makes them, from the same
// configuration: the rate_limits of a route, or of the filter. It is for Weir inside Envoy, where no filter sends
// descriptors. It reads requests through an interface, and so knows neither Envoy nor C.
//
// What it does is what Envoy 1.40 does. A test compares both on random configurations and requests. So the descriptors
// of a Plan have the same counters as those that come from Envoy by gRPC.
//
// # Actions
//
//	generic_key                  descriptor_key, descriptor_value as it is
//	request_headers              the first value of a header, which may be empty; skip_if_absent
//	remote_address               the client's address
//	masked_remote_address        the client's network, with the length of its prefix
//	remote_address_match         descriptor_value, a format, if the client is in one of the networks; invert_match
//	header_value_match           descriptor_value if all headers match; expect_match, every kind of match
//	query_parameters             the first value of a query parameter, decoded; skip_if_absent
//	query_parameter_value_match  descriptor_value if all query parameters match; expect_match
//	source_cluster               the name of Envoy's own cluster
//	destination_cluster          the name of the route's cluster
//	metadata                     text of the request's or the route's metadata; default_value, skip_if_absent
//
// An action without a value takes the whole descriptor away. With skip_if_absent it takes away its own entry, even if
// no other is left. Names of headers are matched without regard to case; "host" means ":authority". If a header has
// several values, header_value_match needs one that matches, and with invert_match none that does. A regex must match
// the whole value. Envoy reads it byte by byte: a letter beyond ASCII is several characters. Bytes of a value that are
// not UTF-8 become a question mark, as with Envoy's requests by gRPC.
//
// # Other fields
//
//	hits_addend           number, or format with one command; without a number from 0 to 1000000000 there is no
//	                      descriptor; is_negative_hits
//	limit                 rate_limit, or dynamic_metadata, which counts only if it is a limit
//	apply_on_stream_done  Plan.OnStreamDone makes the descriptor instead of Plan.OnRequest
//	x_ratelimit_option    Descriptor.XRateLimitHeaders
//
// Formats know text, %% and the command REQ (or REQUEST_HEADER). That of hits_addend also knows RESP (RESPONSE_HEADER),
// of which there is nothing before the response, and DYNAMIC_METADATA. All may have a :LENGTH.
//
// # What is refused
//
//   - extension and string_match.custom: their code is in Envoy.
//   - dynamic_metadata as an action: Envoy 1.40 refuses it as well; metadata does the same.
//   - A command in the descriptor_value of an action other than remote_address_match: Envoy takes it for plain text
//     unless its runtime says otherwise, and Weir does not read the runtime.
//   - stage other than 0, and disable_key: so does Envoy, for rate_limits that are written at the filter.
//   - Elements of lists in metadata (index), and other commands of formats.
//   - (?i) in a regex with letters beyond ASCII.
//
// Two values differ from Envoy on purpose: a number of metadata outside 0 to 4294967295 is no limit, and "nan" is no
// hits_addend; Envoy converts both to whatever the processor makes of them.
package actions
