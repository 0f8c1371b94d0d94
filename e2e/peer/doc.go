// Package peer compares Weir with the service that it can replace: both run as processes, with the same environment,
// the same rule files and a Redis each, and get the same requests. The module is its own, so that Weir does not depend
// on what only these tests need.
package peer
