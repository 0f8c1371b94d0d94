package app

import (
	"net"
	"strings"
	"testing"
	"time"
)

// The process sends what it counted, the last of it when it ends.
func TestStatsd(t *testing.T) {
	var config net.ListenConfig
	receiver, err := config.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close() //nolint:errcheck // only read from
	o := options(t, rulesOf("1"))
	o.StatsdAddr, o.StatsdFormat, o.StatsdInterval = "udp://"+receiver.LocalAddr().String(), "dogstatsd", time.Hour
	o.StatsdPrefix, o.StatsdTags = "edge.", []string{"env:test"}
	p := start(t, o)
	p.ask("a")
	p.ask("a")
	p.wait()

	if err := receiver.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"edge.decisions:1|c|#domain:shop,outcome:allowed,rule:client,env:test",
		"edge.decisions:1|c|#domain:shop,outcome:denied,rule:client,env:test",
		"edge.rules_limits:1|g|#env:test",
	}
	var got string
	for room := make([]byte, 1<<16); !containsAll(got, want); {
		n, _, err := receiver.ReadFrom(room)
		if err != nil {
			t.Fatalf("%v; not all of %q came, but\n%s", err, want, got)
		}
		got += string(room[:n]) + "\n"
	}
}

func containsAll(text string, lines []string) bool {
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			return false
		}
	}
	return true
}
