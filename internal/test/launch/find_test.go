package launch

import (
	"strings"
	"testing"
)

func TestFindEnvoy(t *testing.T) {
	t.Setenv("WEIR_ENVOY", "")
	t.Setenv("PATH", t.TempDir())
	t.Chdir(t.TempDir())
	_, err := FindEnvoy()
	if err == nil || !strings.Contains(err.Error(), "scripts/tools.sh") || !strings.Contains(err.Error(), "WEIR_ENVOY") {
		t.Errorf("error %v, want one that says how to get Envoy", err)
	}
	t.Setenv("WEIR_ENVOY", "/opt/envoy")
	if path, err := FindEnvoy(); err != nil || path != "/opt/envoy" {
		t.Errorf("found %q, %v; want $WEIR_ENVOY", path, err)
	}
}
