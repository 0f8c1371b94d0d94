// Package peer compares Weir with envoyproxy/ratelimit: both run as processes, with the same environment and rule files
// and one Redis each, and get the same requests. It is a separate module, so that Weir does not depend on packages that
// only these tests need.
package peer
