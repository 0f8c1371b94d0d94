package rules_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/internal/test/xdstest"
)

// observer counts nothing.
type observer struct{}

func (observer) RulesCompiled(*descriptors.Set) {}
func (observer) RulesLoaded(string)             {}
func (observer) RulesRestored()                 {}
func (observer) RulesRefused()                  {}

// The status has the warnings of the rules in force: the first hundred of them, and how many there are.
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
	r, err := rules.Load(t.Context(), rules.Options{
		Paths: []string{file}, Observer: observer{}, Log: slog.New(slog.DiscardHandler),
		Live: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := r.Status()
	if s.WarningCount != 150 || len(s.Warnings) != 100 || !strings.HasPrefix(s.Warnings[0], file+":3:") {
		t.Errorf("%d warnings, %d shown: %.1q", s.WarningCount, len(s.Warnings), s.Warnings)
	}
}

// A stop ends a load, of files and of what came by xDS: neither waits until all rules are judged.
func TestStopEndsALoad(t *testing.T) {
	t.Parallel()
	s := xdstest.Start(t, xdstest.Options{})
	s.Set("1", xdstest.Domain("few", xdstest.Limit("sent", "", 1)))
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
	source := xds.New(xds.Options{Server: s.Addr, NodeID: "n", Log: slog.New(slog.DiscardHandler)})
	r, err := rules.Load(t.Context(), rules.Options{
		Paths: []string{file}, XDS: source, Observer: observer{}, Log: slog.New(slog.DiscardHandler), Live: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	const many = 200_000
	sent := make([]*ratelimitv3.RateLimitDescriptor, many)
	for i := range sent {
		sent[i] = xdstest.Limit(strconv.Itoa(i), "", 1)
	}
	s.Set("2", xdstest.Domain("many", sent...))
	write(many)
	for r.Status().LoadingSince.IsZero() {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	_ = source.Close()
	if set := r.Set(); set.Domain("many") != nil || len(set.Limits()) != 2 {
		t.Errorf("%d rules were loaded after the stop", len(set.Limits()))
	}
}

// The log says which limits an edit lowers, and what that means for counters that hold more.
func TestLowerLimitsAreLogged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(low, high int) {
		t.Helper()
		text := fmt.Sprintf("domain: shop\ndescriptors:\n"+
			"  - {key: low, rate_limit: {algorithm: funnel, requests_per_unit: %d, unit: hour}}\n"+
			"  - {key: high, rate_limit: {requests_per_unit: %d, unit: hour}}\n", low, high)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(20, 20)
	var log strings.Builder
	r, err := rules.Load(t.Context(), rules.Options{
		Paths: []string{file}, Observer: observer{}, Log: slog.New(slog.NewTextHandler(&log, nil)), Live: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	write(5, 30)
	if err := r.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	const want = `limits=1 lowered="shop low: funnel: 5 per 1h, burst 5, was funnel: 20 per 1h, burst 20"`
	if got := log.String(); strings.Count(got, "limits are lower") != 1 || !strings.Contains(got, want) {
		t.Errorf("the log has %s, want %s", got, want)
	}
}
