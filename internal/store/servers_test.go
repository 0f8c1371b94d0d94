package store

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// astray is a node of a cluster that says that every slot is its own, and redirects each GET to an address that nobody
// was sent to before: all of them are its own.
type astray struct {
	mu   sync.Mutex
	next int
	open int
	most int
}

func (a *astray) serve(conn net.Conn, port string) {
	a.count(1)
	defer a.count(-1)
	defer conn.Close() //nolint:errcheck // the client is gone
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		var reply string
		switch strings.ToLower(lines.Text()) {
		case "hello":
			reply = "-ERR unknown command 'HELLO'\r\n"
		case "command":
			reply = "*1\r\n*6\r\n$3\r\nget\r\n:2\r\n*1\r\n+readonly\r\n:1\r\n:1\r\n:1\r\n"
		case "cluster":
			reply = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:" + port + "\r\n"
		case "get":
			a.mu.Lock()
			a.next++
			reply = fmt.Sprintf("-MOVED 1 127.1.%d.%d:%s\r\n", a.next/250, 1+a.next%250, port)
			a.mu.Unlock()
		default: // lengths, arguments
			continue
		}
		if _, err := conn.Write([]byte(reply)); err != nil {
			return
		}
	}
}

func (a *astray) count(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open += n
	a.most = max(a.most, a.open)
}

// A node that redirects to ever more addresses costs a bounded number of connections.
func TestServersAreBounded(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var node astray
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { node.serve(conn, port) })
		}
	})
	const most = 20
	d := &dialer{Dialer: net.Dialer{Timeout: time.Minute}, servers: servers{most: most}}
	c := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"127.0.0.1:" + port}, Dialer: d.dial, MaxRetries: -1, Protocol: 2, DisableIdentity: true,
	})
	var last error
	for range 100 {
		last = c.Get(context.Background(), "key").Err()
	}
	if last == nil || !strings.Contains(last.Error(), "20 servers have connections already") {
		t.Errorf("the last error is %v", last)
	}
	node.mu.Lock()
	if node.next < most || node.most > most*2 {
		t.Errorf("%d connections at once, %d redirections; want servers bounded by %d", node.most, node.next, most)
	}
	node.mu.Unlock()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	_ = listener.Close()
	serving.Wait()
	if n := len(d.servers.open); n != 0 {
		t.Errorf("%d servers are counted after the end", n)
	}
}
