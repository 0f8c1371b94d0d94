package launch

import (
	"net"
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

// Another program that looks for an address does not get one that is returned already, even while nobody listens there.
func TestFreeAddrIsKept(t *testing.T) {
	addr, err := FreeAddr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if mark, err := net.ListenPacket("udp", addr); err == nil {
		_ = mark.Close()
		t.Errorf("%s is not kept", addr)
	}
}
