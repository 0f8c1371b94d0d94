package redisstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// TestMasterBecomesReplica makes the old master refuse writes. The same store must find the new master.
func TestMasterBecomesReplica(t *testing.T) {
	servers := redistest.StartSentinel(t, "--requirepass", "s3cret", "--masterauth", "s3cret")
	url := strings.Replace(servers.URL(), "://", "://:s3cret@", 1)
	s := open(t, url, redisstore.Options{Timeout: 200 * time.Millisecond})
	redistest.Await(t, func() error { return counts(t, s) })
	servers.Failover(t)
	redistest.Await(t, func() error { return redistest.IsMaster(servers.Replica) })
	host, port, _ := strings.Cut(servers.Replica.Addr(), ":")
	redistest.Do(t, servers.Master, "replicaof", host, port) // the sentinel would do it in ten seconds
	redistest.Await(t, func() error { return counts(t, s) })

	wrong := open(t, strings.Replace(url, redistest.SentinelPassword, "wr0ng", 1), redisstore.Options{})
	err := wrong.Ping(t.Context())
	if got := fmt.Sprint(err); !errors.Is(err, limiter.ErrUnavailable) || strings.Contains(got, "wr0ng") ||
		strings.Contains(got, "s3cret") {
		t.Errorf("wrong password of the sentinel: %v, want an ErrUnavailable that shows none", err)
	}
}

// TestReadOnlyReplica makes a server without Sentinel a replica, and then a master, which must count again.
func TestReadOnlyReplica(t *testing.T) {
	server, other := redistest.Start(t), redistest.Start(t)
	s := open(t, server.URL(), redisstore.Options{})
	if err := counts(t, s); err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(other.Addr(), ":")
	redistest.Do(t, server, "replicaof", host, port)
	redistest.Await(t, func() error {
		if err := counts(t, s); !strings.Contains(fmt.Sprint(err), "READONLY") {
			return fmt.Errorf("a replica said %w, want READONLY", err)
		}
		return nil
	})
	redistest.Do(t, server, "replicaof", "no", "one")
	redistest.Await(t, func() error { return counts(t, s) })
}
