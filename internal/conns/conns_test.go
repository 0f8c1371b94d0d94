package conns

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
