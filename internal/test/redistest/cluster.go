package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// nodeTimeout is how long a node of a Cluster is missed before its replica takes over: a paused one stays a master for
// as long. With hasty it takes over soon.
const nodeTimeout, hasty = 15 * time.Second, 500 * time.Millisecond

// slots is how many parts a cluster's keys lie in.
const slots = 16384

// Cluster is a Redis Cluster of its own.
type Cluster struct {
	tb testing.TB
	// Masters and Replicas are as they began: Replicas[i] is that of Masters[i].
	Masters, Replicas []*Server
}

// StartCluster runs a cluster of so many masters, each with a replica, with further arguments, and returns when it
// answers, in about three seconds.
func StartCluster(tb testing.TB, masters int, args ...string) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb}
	node := func() *Server {
		return Start(tb, append([]string{
			"--cluster-enabled", "yes", "--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
			"--cluster-port", strconv.Itoa(proctest.FreePort(tb)), "--repl-diskless-sync-delay", "0",
		}, args...)...)
	}
	for range masters {
		c.Masters, c.Replicas = append(c.Masters, node()), append(c.Replicas, node())
	}
	for i, m := range c.Masters {
		Do(tb, m, "cluster", "addslotsrange", i*slots/masters, (i+1)*slots/masters-1)
	}
	first := c.Masters[0]
	for _, s := range c.all()[1:] {
		Do(tb, s, "cluster", "meet", "127.0.0.1", first.port, busPort(first))
	}
	for i, s := range c.Replicas {
		id := Do(tb, c.Masters[i], "cluster", "myid")
		Await(tb, func() error { return TryDo(s, nil, "cluster", "replicate", id) })
	}
	c.AwaitOK()
	return c
}

func (c *Cluster) all() []*Server { return append(append([]*Server{}, c.Masters...), c.Replicas...) }

// URL names all nodes.
func (c *Cluster) URL() string {
	var hosts []string
	for _, s := range c.all() {
		hosts = append(hosts, s.Addr())
	}
	return "redis+cluster://" + strings.Join(hosts, ",")
}

// AwaitOK returns when every node that runs says that all slots are served and each replica is in step.
func (c *Cluster) AwaitOK() {
	c.tb.Helper()
	for _, s := range c.all() {
		Await(c.tb, func() error {
			if s.dead {
				return nil
			}
			var info, replication, nodes any
			err := errors.Join(TryDo(s, &info, "cluster", "info"), TryDo(s, &replication, "info", "replication"), TryDo(s, &nodes, "cluster", "nodes"))
			if err != nil {
				return err
			}
			if text := fmt.Sprint(info); !strings.Contains(text, "cluster_state:ok") || strings.Count(fmt.Sprint(nodes), "\n") != len(c.all()) {
				return fmt.Errorf("%s: %s\n%s", s.Addr(), text, nodes)
			}
			if text := fmt.Sprint(replication); strings.Contains(text, "role:slave") && !strings.Contains(text, "master_link_status:up") {
				return fmt.Errorf("%s: %s", s.Addr(), text)
			}
			return nil
		})
	}
}

// Move has a slot migrate from one master to another: during is called while its keys may be on either.
func (c *Cluster) Move(slot int, from, to *Server, during func()) {
	c.tb.Helper()
	source, target := Do(c.tb, from, "cluster", "myid"), Do(c.tb, to, "cluster", "myid")
	Do(c.tb, to, "cluster", "setslot", slot, "importing", source)
	Do(c.tb, from, "cluster", "setslot", slot, "migrating", target)
	during()
	for {
		keys, _ := Do(c.tb, from, "cluster", "getkeysinslot", slot, 100).([]any)
		if len(keys) == 0 {
			break
		}
		Do(c.tb, from, append([]any{"migrate", "127.0.0.1", to.port, "", 0, 5000, "keys"}, keys...)...)
	}
	for _, s := range []*Server{to, from} {
		Do(c.tb, s, "cluster", "setslot", slot, "node", target)
	}
}

// Fail kills the i-th master and returns when its replica has taken over.
func (c *Cluster) Fail(i int) {
	c.tb.Helper()
	c.hurry()
	c.Masters[i].Kill()
	AwaitMaster(c.tb, c.Replicas[i])
}

// Promote returns when the replica of the i-th master, which was killed, has taken over.
func (c *Cluster) Promote(i int) {
	c.tb.Helper()
	c.hurry()
	AwaitMaster(c.tb, c.Replicas[i])
}

// hurry has replicas take over soon.
func (c *Cluster) hurry() {
	for _, s := range c.all() {
		if !s.dead {
			Do(c.tb, s, "config", "set", "cluster-node-timeout", hasty.Milliseconds())
		}
	}
}

// AwaitMaster returns when the server is a master.
func AwaitMaster(tb testing.TB, s *Server) {
	tb.Helper()
	Await(tb, func() error {
		var role any
		err := TryDo(s, &role, "role")
		if list, _ := role.([]any); err == nil && (len(list) == 0 || list[0] != "master") {
			err = fmt.Errorf("its role is %v", role)
		}
		return err
	})
}

// busPort is the port on which a node hears other nodes.
func busPort(s *Server) string { return s.args[slices.Index(s.args, "--cluster-port")+1] }

// Do sends the server a command and returns its answer; an error fails the test.
func Do(tb testing.TB, s *Server, args ...any) any {
	tb.Helper()
	var answer any
	if err := TryDo(s, &answer, args...); err != nil {
		tb.Fatalf("%v: %v", args, err)
	}
	return answer
}

// TryDo sends the server a command and stores its answer, unless that is nil.
func TryDo(s *Server, answer *any, args ...any) error {
	password := ""
	if i := slices.Index(s.args, "--requirepass"); i >= 0 {
		password = s.args[i+1]
	}
	return tryDoAs(s, password, answer, args...)
}

func tryDoAs(s *Server, password string, answer *any, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: s.Socket(), Password: password, Protocol: 2, DisableIdentity: true, MaxRetries: -1,
	})
	defer client.Close() //nolint:errcheck // nothing was written that could be lost
	got, err := client.Do(ctx, args...).Result()
	if answer != nil {
		*answer = got
	}
	return err
}

// Await asks until the answer is nil, and fails the test if it is not in time.
func Await(tb testing.TB, ask func() error) {
	tb.Helper()
	deadline := time.After(patience)
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-poll.C:
		case <-deadline:
			tb.Fatalf("not after %s: %v", patience, err)
		}
	}
}
