package words_test

import (
	"net"
	"testing"

	"github.com/weir-ratelimit/weir/internal/words"
)

func TestClient(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7:4711":                   "192.0.2.7",
		"[::ffff:192.0.2.7]:4711":          "192.0.2.7",
		"[2001:db8:1:2::1]:1":              "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff:1:2:3]:2":      "2001:db8:1:2::/64",
		"[2001:db8:1:3::1]:1":              "2001:db8:1:3::/64",
		"[fe80::1%eth0]:1":                 "fe80::1%eth0",
		"[::1]:9":                          "::1",
		"[fd00:10:244:1:5c4a:83ff::2]:443": "fd00:10:244:1::/64",
	} {
		tcp, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := words.Client(tcp); got != want {
			t.Errorf("%s is %q, want %q", addr, got, want)
		}
	}
	if got := words.Client(&net.UnixAddr{Name: "@weir", Net: "unix"}); got != "unix" {
		t.Errorf("a Unix socket's client is %q", got)
	}
}
