package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// A client with go-redis's defaults works, on a server and on a cluster. The store does not close it.
func TestClientWithDefaults(t *testing.T) {
	server, cluster := redistest.Start(t), redistest.StartCluster(t, 3)
	addrs := make([]string, len(cluster.Masters))
	for i, m := range cluster.Masters {
		addrs[i] = m.Addr()
	}
	for name, c := range map[string]redis.UniversalClient{
		"server":  redis.NewClient(&redis.Options{Addr: server.Addr()}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs}),
	} {
		t.Run(name, func(t *testing.T) {
			defer c.Close() //nolint:errcheck // only asked
			s, err := redisstore.New(c, redisstore.Options{Timeout: patient})
			if err != nil {
				t.Fatal(err)
			}
			redistest.Await(t, func() error { return s.Ping(t.Context()) })
			for want := int64(2); want >= 0; want-- {
				if d := take(t, s, "k", funnel(t, 3, time.Hour), 1); !d.Allowed || d.Remaining != want {
					t.Errorf("%+v, want %d remaining", d, want)
				}
			}
			if s.CanLendAtAll() {
				t.Error("a request lends its goroutine to a call that may outlast its deadline")
			}
		})
	}
}

// Take returns at its timeout even if the client does not end a call at a deadline.
func TestClientWithoutContextTimeout(t *testing.T) {
	server := redistest.Start(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: time.Minute})
	defer c.Close() //nolint:errcheck // only asked
	s, err := redisstore.New(c, redisstore.Options{Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Await(t, func() error { return counts(t, s) })
	server.Pause()
	defer server.Resume()
	start := time.Now()
	if err := counts(t, s); err == nil {
		t.Error("a server that hangs has counted")
	}
	if took := time.Since(start); took > 40*time.Second {
		t.Errorf("Take came back after %s, with a timeout of 20ms", took)
	}
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{})
	nearest := redis.NewClusterClient(&redis.ClusterOptions{RouteByLatency: true})
	defer ring.Close()    //nolint:errcheck // it has no connection
	defer nearest.Close() //nolint:errcheck // as above
	one := redis.NewClient(&redis.Options{})
	defer one.Close() //nolint:errcheck // as above
	for _, tt := range []struct {
		client redis.UniversalClient
		o      redisstore.Options
		want   string
	}{
		{nil, redisstore.Options{}, "the client is missing"},
		{one, redisstore.Options{Timeout: -1}, "the timeout must not be negative, got -1ns"},
		{nearest, redisstore.Options{}, "counters are on masters; leave out ReadOnly, RouteByLatency and RouteRandomly"},
		{ring, redisstore.Options{}, "the servers of a redis.Ring cannot decide a request together; use a cluster"},
	} {
		if _, err := redisstore.New(tt.client, tt.o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}
