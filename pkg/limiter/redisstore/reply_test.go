package redisstore_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// What is no reply of a Redis is an error, also where nobody has asked: go-redis panics when it cannot make the list
// that a reply announces.
func TestReplyThatGoRedisCannotTake(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test ends
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close() //nolint:errcheck // the client has gone
				for asked := make([]byte, 4096); ; {
					n, err := conn.Read(asked)
					if err != nil {
						return
					}
					reply := "*9000000000000000000\r\n"
					if strings.Contains(strings.ToLower(string(asked[:n])), "hello") {
						reply = "-ERR unknown command\r\n"
					}
					if _, err := conn.Write([]byte(reply)); err != nil {
						return
					}
				}
			}()
		}
	}()
	s := open(t, "redis://"+l.Addr().String(), redisstore.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.Ping(ctx); err == nil || !strings.Contains(err.Error(), "panic while Redis was asked") {
		t.Errorf("a ping: %v", err)
	}
	var why error
	s.Refunds(ctx, func(string, bool) {}, func(_ bool, err error) {
		if err != nil && strings.Contains(err.Error(), "panic while Redis was asked") {
			why = err
			cancel()
		}
	})
	if why == nil {
		t.Error("refunds are heard, or nothing is said")
	}
}
