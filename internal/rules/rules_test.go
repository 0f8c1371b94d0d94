package rules_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// load loads rules for the first time.
func load(t *testing.T, o rules.Options) *rules.Rules {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r, err := rules.New(t.Context(), o)
	if err == nil {
		err = r.Load(t.Context(), func(*descriptors.Set) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// The status has the first hundred warnings of the active rules, and the number of all.
func TestStatusHasWarnings(t *testing.T) {
	var text strings.Builder
	text.WriteString("domain: shop\ndescriptors:\n")
	for i := range 150 {
		fmt.Fprintf(&text, "  - {key: k%d, value: ^a$, rate_limit: {requests_per_unit: 5, unit: second}}\n",
			i)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r := load(t, rules.Options{Config: rules.Config{Rules: []string{file}}})
	s := r.Status()
	if s.WarningCount != 150 || len(s.Warnings) != 100 || !strings.HasPrefix(s.Warnings[0], file+":3:") {
		t.Errorf("%d warnings, %d shown: %.1q", s.WarningCount, len(s.Warnings), s.Warnings)
	}
}

// A stop ends a load of files or xDS rules before all rules are compiled.
func TestStopEndsALoad(t *testing.T) {
	t.Parallel()
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	s.Set("1", partnertest.Domain("few", partnertest.Limit("sent", "", 1)))
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(n int) {
		t.Helper()
		var text strings.Builder
		text.WriteString("domain: shop\ndescriptors:\n")
		for i := range n {
			fmt.Fprintf(&text, "- {key: k%d, rate_limit: {requests_per_unit: 5, unit: second}}\n", i)
		}
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	r := load(t, rules.Options{Config: rules.Config{
		Rules: []string{file, "xds"}, XDS: xds.Options{Server: s.Addr, NodeID: "n"},
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	const many = 60_000
	sent := make([]*ratelimitv3.RateLimitDescriptor, many)
	for i := range sent {
		sent[i] = partnertest.Limit(strconv.Itoa(i), "", 1)
	}
	s.Set("2", partnertest.Domain("many", sent...))
	write(many)
	proctest.Eventually(t, "a load begins", func() bool { return !r.Status().LoadingSince.IsZero() })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if set := r.Set(); set.Domain("many") != nil || len(set.Limits()) != 2 {
		t.Errorf("%d rules were loaded after the stop", len(set.Limits()))
	}
	redistest.Await(t, func() error { // what takes long is left behind, and ends by itself
		stacks := make([]byte, 1<<20)
		if bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("xds.(*Source).judge(")) {
			return errors.New("an answer of the control plane is still judged")
		}
		return nil
	})
}
