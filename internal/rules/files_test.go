package rules_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

func TestDescriptors(t *testing.T) {
	got := rules.Descriptors([]reload.File{{Name: "a", Data: []byte("b"), Included: true}})
	if diff := cmp.Diff([]rulefile.File{{Name: "a", Data: []byte("b"), Included: true}}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
