package store_test

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A Sentinel whose addresses of masters lack fields does not end the process, and requests get an error.
func TestOddSentinel(t *testing.T) {
	subscribed := "*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n"
	for _, tt := range []struct{ name, master, messages, want string }{
		{"no address", "*0\r\n", subscribed, `"*0\r\n" does not begin the address of a master`},
		{"no port", "*1\r\n$9\r\n127.0.0.1\r\n", subscribed, "does not begin the address of a master"},
		{"a set without an address", "~0\r\n", subscribed, "does not begin the address of a master"},
		{"no master", "*-1\r\n", subscribed, "sentinels specified in configuration are unreachable: redis: nil"},
		{"a message without a master", "", subscribed + "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$1\r\nm\r\n", ""},
		{
			"a message of half a master", "",
			subscribed + "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$5\r\nm a b c d\r\n", "",
		},
		{"a channel as a status", "", subscribed + "*3\r\n+message\r\n++switch-master\r\n+m\r\n", ""},
		{"a message in lists", "", subscribed + "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n*1\r\n$1\r\nm\r\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newOddServer(t, "-ERR no\r\n")
			addr := s.listener.Addr().String()
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				t.Fatal(err)
			}
			if tt.master == "" { // the server names itself
				tt.master = "*2\r\n$9\r\n" + host + "\r\n$" + strconv.Itoa(len(port)) + "\r\n" + port + "\r\n"
			}
			s.says = map[string]string{"sentinel": tt.master, "subscribe": tt.messages}
			store := open(t, "redis+sentinel://"+addr+"/m/0", 2*time.Second)
			var out [1]limiter.Decision
			err = store.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: funnel(t, 10), N: 1}}, out[:])
			if !errors.Is(err, limiter.ErrUnavailable) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want an ErrUnavailable with %q", err, tt.want)
			}
			if tt.want == "" {
				redistest.Await(t, func() error { // the message was read: the subscription is made again
					if s.subscribed.Load() < 2 {
						return errors.New("the subscription is not made again")
					}
					return nil
				})
			}
		})
	}
}
