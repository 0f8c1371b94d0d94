// Package e2e tests Weir as users run it: the built program, with a real Envoy in front and a real redis-server behind
// it. The tests have the build tag e2e; make test runs them.
package e2e
