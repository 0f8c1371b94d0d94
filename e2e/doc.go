// Package e2e tests Weir as its users have it: the built binary, a real Envoy in front of it, and a real
// redis-server behind it. The tests stand behind the build tag e2e; make test runs them.
package e2e
