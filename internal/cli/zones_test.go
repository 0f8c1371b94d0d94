package cli

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestZonesAreInTheBinary: a container without time zones can load rules that name one.
func TestZonesAreInTheBinary(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(strings.Fields(string(out)), "time/tzdata") {
		t.Error("time/tzdata is not linked in")
	}
}
