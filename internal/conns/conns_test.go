package conns

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func TestMain(m *testing.M) { casetest.FindLeaks(m) }

const patience = time.Minute

// A client that does not read is cut off.
func TestUnread(t *testing.T) {
	g := New(Options{
		Name: "grpc", Max: 10, Budget: NewBudget(1 << 20), Log: slog.New(slog.DiscardHandler),
		HTTP2: &HTTP2{ReceiveTimeout: patience, MaxResets: 100, WriteTimeout: 100 * time.Millisecond},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = g.Listen(l, false)
	defer l.Close() //nolint:errcheck // not used any more
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close() //nolint:errcheck // as above
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() //nolint:errcheck // the guard has closed it
	if err := server.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for text := make([]byte, 1<<20); err == nil; {
		_, err = server.Write(text)
	}
	if s := g.Stats(); s.Refused[Unread] != 1 || s.Open != 0 {
		t.Errorf("%v: %+v", err, s)
	}
}

// The bounds follow file descriptors and memory where nobody says more.
func TestBoundsOnConnections(t *testing.T) {
	const most = 1 << 62
	for _, tc := range []struct {
		name       string
		grpc, http int
		files      uint64
		memory     int64
		want       [2]int
	}{
		{"nothing is scarce", 0, 0, most, most, [2]int{16384, 256}},
		{"64 files", 0, 0, 64, most, [2]int{32, 8}},
		{"64 files and flags", 1000, 1000, 64, most, [2]int{32, 8}},
		{"1024 files", 0, 256, 1024, most, [2]int{640, 128}},
		{"256 MiB", 0, 256, most, 256 << 20 * 9 / 10, [2]int{1228, 256}},
		{"flags", 10, 20, most, 1 << 20, [2]int{10, 20}},
		{"next to no files", 0, 0, 10, most, [2]int{4, 4}},
	} {
		if b := (Bounds{GRPC: tc.grpc, HTTP: tc.http}).of(tc.files, tc.memory); [2]int{b.GRPC, b.HTTP} != tc.want {
			t.Errorf("%s: %d gRPC and %d HTTP connections, want %v", tc.name, b.GRPC, b.HTTP, tc.want)
		}
	}
}
