//go:build e2e

// Package rlqs tests quotas (Rate Limit Quota Service) with a real Envoy. TestContract and its neighbors show what
// Envoy's filter does, with a server of the test's own: docs/adr/0076 lists the facts.
package rlqs

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/longtest"
)

func TestMain(m *testing.M) { longtest.Main(m, 100) }

// patience is how long something may take on a busy machine.
const patience = 30 * time.Second

// tick is how often Envoy reports.
const tick = 5 * time.Second

// await polls until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not after %s: %s", patience, what)
		}
	}
}
