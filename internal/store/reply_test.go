package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// oddServer answers commands with a text, whatever they are: the first ones as a Redis does, if it is told to.
type oddServer struct {
	listener   net.Listener
	subscribed atomic.Int64      // how often
	says       map[string]string // replies to commands by their first word, in place of reply
	reply      atomic.Pointer[string]
	wait       sync.WaitGroup
}

func newOddServer(t *testing.T, reply string) *oddServer {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &oddServer{listener: l}
	s.reply.Store(&reply)
	ctx, cancel := context.WithCancel(t.Context())
	s.wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.wait.Go(func() { s.serve(ctx, conn) })
		}
	})
	t.Cleanup(func() {
		cancel()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		s.wait.Wait()
	})
	return s
}

// serve answers each command that has come.
func (s *oddServer) serve(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer conn.Close() //nolint:errcheck // nothing depends on it
	in := bufio.NewReader(conn)
	for {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		reply, later := strings.CutPrefix(*s.reply.Load(), "later ")
		if command == "subscribe" {
			s.subscribed.Add(1)
		}
		said, says := s.says[command]
		switch {
		case says:
			reply = said
		case !later:
		case command == "hello": // as a server that is older than that
			reply = "-ERR unknown command 'hello'\r\n"
		case command == "client" || command == "select":
			reply = "+OK\r\n"
		}
		if _, err := conn.Write([]byte(reply)); err != nil {
			return
		}
	}
}

// readCommand reads a command, and answers its first word.
func readCommand(in *bufio.Reader) (name string, err error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	var items, length int
	if !strings.HasPrefix(line, "*") { // in one line
		name, _, _ = strings.Cut(line, " ")
		return strings.ToLower(name), nil
	}
	if _, err := fmt.Sscanf(line, "*%d", &items); err != nil {
		return "", err
	}
	for i := range items {
		if line, err = in.ReadString('\n'); err != nil {
			return "", err
		}
		if _, err := fmt.Sscanf(line, "$%d", &length); err != nil {
			return "", err
		}
		item := make([]byte, length+2)
		if _, err := io.ReadFull(in, item); err != nil {
			return "", err
		}
		if i == 0 {
			name = strings.ToLower(string(item[:length]))
		}
	}
	return name, nil
}

// oddReplies are what no Redis replies, and what is said of each.
var oddReplies = []struct{ name, reply, want string }{
	{"a text of 2^31 bytes", "$2147483648\r\n", "announces a text of 2147483648 bytes"},
	{"a text of 2^63-1 bytes", "$9223372036854775807\r\n", "announces a text of 9223372036854775807 bytes"},
	{"a text of 2^63 bytes", "$9223372036854775808\r\n", "announces no length"},
	{"a text of -2 bytes", "$-2\r\n", "announces no length"},
	{"a text of ? bytes", "$?\r\n", "announces no length"},
	{"a list of 2^31 items", "*2147483648\r\n", "announces a list of 2147483648 items"},
	{"a list of 2^63-1 items", "*9223372036854775807\r\n", "announces a list of 9223372036854775807 items"},
	{"a map of 2^62 items", "%4611686018427387904\r\n", "announces a list of 4611686018427387904 items"},
	{"a map of too many pairs", "%131073\r\n", "announces a list of 131073 items, the most is 131072"},
	{"maps in each other", strings.Repeat("%1\r\n+a\r\n", 20), "more than 16 lists in each other"},
	{"many lists of many items", strings.Repeat("*100000\r\n", 10), "announces a list of 100000 items"},
	{"a million lists in each other", strings.Repeat("*1\r\n", 1_000_000), "more than 16 lists in each other"},
	{"a million attributes", strings.Repeat("|0\r\n", 1_000_000), "it has an attribute"},
	{"a million attributes in each other", strings.Repeat("|1\r\n", 1_000_000), "it has an attribute"},
	{
		"many texts", "*2\r\n$20000000\r\n" + strings.Repeat("x", 20_000_000) + "\r\n$20000000\r\n",
		"announces a text of 20000000 bytes",
	},
	{"an error of 5 MB", "-ERR " + strings.Repeat("x", 5<<20) + "\r\n", "a line of more than 8192 bytes"},
	{"a line without an end", "+" + strings.Repeat("x", 1<<20), "a line of more than 8192 bytes"},
	{"a long error", "-ERR " + strings.Repeat("x", 8000) + "\r\n", "ERR xxx"},
	{"a blob of an error", "!5000\r\n" + strings.Repeat("x", 5000) + "\r\n", ""},
	{"a text that is no answer", "$3\r\nabc\r\n", "the script answered 3 bytes for 1 hits"},
	{"a number", ":12\r\n", "the script answered"},
	{"an empty list", "*0\r\n", "the script answered"},
	{"nothing", "$-1\r\n", ""},
	{"NaN", "$16\r\n" + strings.Repeat("\xff", 16) + "\r\n", "where a whole number belongs"},
	{
		"infinity", "$16\r\n" + strings.Repeat("\x00\x00\x00\x00\x00\x00\xf0\x7f", 2) + "\r\n",
		"where a whole number belongs",
	},
	{"lists that are no answer", "*4\r\n$0\r\n\r\n:1\r\n:2\r\n*-1\r\n", "the script answered"},
	{"no protocol", "HTTP/1.1 400 Bad Request\r\n\r\n", ""},
}

// TestClusterOfManyMasters: a server that names far more masters than there are slots does not hold up Ping.
func TestClusterOfManyMasters(t *testing.T) {
	s := newOddServer(t, "-ERR no\r\n")
	_, port, err := net.SplitHostPort(s.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	const masters = 10_000
	var slots strings.Builder
	fmt.Fprintf(&slots, "*%d\r\n", masters)
	for i := range masters {
		addr := fmt.Sprintf("127.1.%d.%d", i/200, i%200)
		fmt.Fprintf(&slots, "*3\r\n:0\r\n:16383\r\n*2\r\n$%d\r\n%s\r\n:%s\r\n", len(addr), addr, port)
	}
	s.says = map[string]string{"cluster": slots.String()}
	store := open(t, "redis+cluster://"+s.listener.Addr().String(), 2*time.Second)
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended <- store.Ping(ctx)
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, limiter.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
	case <-time.After(40 * time.Second): // it would take minutes of CPU
		t.Error("Ping has not returned")
	}
}

// TestOddReplies: whatever a server replies, a request gets an error soon that wraps ErrUnavailable and is short, as
// does Ping; and a store whose server replies sensibly again goes on.
func TestOddReplies(t *testing.T) {
	for _, o := range oddReplies {
		for _, when := range []string{"", "later "} { // from the first byte on; once connected
			t.Run(strings.TrimSpace(o.name+" "+when), func(t *testing.T) {
				s := newOddServer(t, when+o.reply)
				store := open(t, "redis://"+s.listener.Addr().String()+"/0", 2*time.Second)
				var out [1]limiter.Decision
				err := store.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: funnel(t, 10), N: 1}}, out[:])
				if !errors.Is(err, limiter.ErrUnavailable) || len(err.Error()) > 1000 {
					t.Errorf("Take: %.2000v, want a short ErrUnavailable", err)
				}
				if when != "" && !strings.Contains(fmt.Sprint(err), o.want) {
					t.Errorf("Take: %v, want %q", err, o.want)
				}
				if err := store.Ping(t.Context()); !errors.Is(err, limiter.ErrUnavailable) || len(err.Error()) > 1000 {
					t.Errorf("Ping: %.2000v, want a short ErrUnavailable", err)
				}
				minusOne := "\x00\x00\x00\x00\x00\x00\xf0\xbf" // begins a denial
				good := "later $40\r\n" + minusOne + strings.Repeat("\x00", 32) + "\r\n"
				s.reply.Store(&good)
				hit := []limiter.Hit{{Key: "k", Policy: funnel(t, 10), N: 1}}
				if err := store.Take(t.Context(), hit, out[:]); err != nil || out[0].Allowed {
					t.Errorf("a denial was read as %+v, %v", out[0], err)
				}
			})
		}
	}
}
