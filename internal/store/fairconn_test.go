package store

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// If the response is in the socket when a deadline passes, this process was late, and it reads the response. Otherwise
// it is a timeout.
func TestAnswerInTheSocketIsRead(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	d := &dialer{answer: 50 * time.Millisecond}
	conn, err := d.connect(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	there, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = there.Close() }()
	if _, err := there.Write([]byte("+OK\r\n")); err != nil {
		t.Fatal(err)
	}
	over := time.Now().Add(-time.Second)
	read := func(what string) {
		t.Helper()
		if n, err := conn.Read(make([]byte, 5)); n != 5 || err != nil {
			t.Errorf("%s: read %d bytes, %v; want the answer", what, n, err)
		}
	}
	if err := conn.SetReadDeadline(over); err != nil { // deadline of a call that began long ago
		t.Fatal(err)
	}
	read("an early deadline")
	if _, err := there.Write([]byte("+OK\r\n")); err != nil {
		t.Fatal(err)
	}
	d.answer = 0
	if err := conn.SetDeadline(over); err != nil { // as if this process had not run since the deadline was set
		t.Fatal(err)
	}
	read("a deadline that is over")
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("without an answer: %v, want a timeout", err)
	}
	if err := conn.SetWriteDeadline(over); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		t.Errorf("a write whose deadline is over before it begins: %v", err)
	}
}

// The response to AUTH is dropped, also if it arrives in parts or with the response to the command.
func TestAuthIsSentBeforeTheNextCommand(t *testing.T) {
	for _, parts := range [][]string{{"+OK\r\n:7\r\n"}, {"+O", "K\r", "\n", ":7\r\n"}, {"-NO\r\n:", "7\r\n"}} {
		c := newCredentials()
		near, far := net.Pipe()
		conn := &authConn{Conn: near, from: c, used: c.current.Load()}
		c.current.Store(&login{Username: "u", Password: "p q"})
		wrote, written := make([]byte, 100), make(chan int)
		go func() {
			n, _ := far.Read(wrote)
			for _, part := range parts {
				_, _ = far.Write([]byte(part))
			}
			written <- n
		}()
		_ = conn.SetWriteDeadline(time.Time{})
		if n, err := conn.Write([]byte("*1\r\n$4\r\nTIME\r\n")); n != 14 || err != nil {
			t.Errorf("wrote %d bytes, %v", n, err)
		}
		answer := make([]byte, 4)
		if _, err := io.ReadFull(conn, answer); string(answer) != ":7\r\n" || err != nil {
			t.Errorf("%q: %q, %v", parts, answer, err)
		}
		want := "*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$3\r\np q\r\n*1\r\n$4\r\nTIME\r\n"
		if got := string(wrote[:<-written]); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if refused := parts[0][0] == '-'; refused != (len(c.refused) == 1) {
			t.Errorf("%q: %d refusals", parts, len(c.refused))
		}
		_ = near.Close()
	}
}
