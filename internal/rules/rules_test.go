package rules_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
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
