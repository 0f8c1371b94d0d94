package store

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// A stop waits for the store with the longest timeout.
func TestLongestTimeout(t *testing.T) {
	o := &Options{Store: "redis://h?timeout=20ms", StoreTimeout: 15 * time.Millisecond}
	for range 2 {
		want := 20 * time.Millisecond
		if o.NamedStores != nil {
			want = 450 * time.Millisecond
		}
		if got, wait := o.LongestTimeout(), o.MaxWait(); got != want || wait != want {
			t.Errorf("the longest timeout is %s, the longest wait %s, want %s", got, wait, want)
		}
		o.NamedStores = map[string]string{"home": "redis://far?timeout=450ms", "near": "redis://near"}
	}
	if o.StoreTimeout = 0; o.MaxWait() != MaxTimeout {
		t.Errorf("until the caller's deadline, the longest wait is %s, want %s", o.MaxWait(), MaxTimeout)
	}
}

// Late responses of a server are read for a second. A hanging sentinel or node delays the search for the master by 250
// ms, or by the timeout of requests if that is longer.
func TestReadTimeout(t *testing.T) {
	for _, tc := range []struct {
		url           string
		timeout, want time.Duration
	}{
		{"redis://h", 5 * time.Millisecond, redisstore.LateAnswer},
		{"redis://h", 2 * time.Second, 2 * time.Second},
		{"redis+sentinel://h/m", 5 * time.Millisecond, topologyTimeout},
		{"redis+sentinel://h/m", 2 * time.Second, 2 * time.Second},
		{"redis+cluster://h", 5 * time.Millisecond, topologyTimeout},
		{"redis+cluster://h", 2 * time.Second, 2 * time.Second},
	} {
		a, err := parseURL(tc.url)
		if err != nil {
			t.Fatal(err)
		}
		o, err := a.options(&redisstore.Options{Timeout: tc.timeout})
		if err != nil {
			t.Fatal(err)
		}
		if o.ReadTimeout != tc.want {
			t.Errorf("%s with timeout %s: ReadTimeout is %s, want %s", tc.url, tc.timeout, o.ReadTimeout, tc.want)
		}
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
