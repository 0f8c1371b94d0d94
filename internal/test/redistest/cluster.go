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

// nodeTimeout is the time without a response from a node after which its replica takes over. Until then, a paused node
// stays a master. No node of an overloaded machine may reach it.
const nodeTimeout = time.Minute

// slots is the number of hash slots of a Redis Cluster.
const slots = 16384

// Cluster is a running Redis Cluster.
type Cluster struct {
	tb testing.TB
	// Masters and Replicas are the initial roles: Replicas[i] is the replica of Masters[i].
	Masters, Replicas []*Server
}

// StartCluster runs a Cluster of this number of masters with a replica each, and further arguments for all of them. It
// returns when the Cluster works, after about three seconds.
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
	// Otherwise two masters would have the same epoch until one changes it; a replica that missed this is never elected.
	for i, s := range c.all() {
		Do(tb, s, "cluster", "set-config-epoch", i+1)
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

// URL returns a URL with all nodes.
func (c *Cluster) URL() string {
	var hosts []string
	for _, s := range c.all() {
		hosts = append(hosts, s.Addr())
	}
	return "redis+cluster://" + strings.Join(hosts, ",")
}

// AwaitOK waits until every running node reports that all slots are served and that its replication works.
func (c *Cluster) AwaitOK() {
	c.tb.Helper()
	for _, s := range c.all() {
		Await(c.tb, func() error {
			if s.dead {
				return nil
			}
			var info, replication, nodes any
			err := errors.Join(TryDo(s, &info, "cluster", "info"), TryDo(s, &nodes, "cluster", "nodes"),
				TryDo(s, &replication, "info", "replication"))
			known, role := strings.Count(fmt.Sprint(nodes), "\n"), fmt.Sprint(replication)
			switch {
			case err != nil:
				return err
			// With cluster-require-full-coverage no, the state is ok even before a node knows the owners of all slots.
			case !strings.Contains(fmt.Sprint(info), "cluster_state:ok"), known != len(c.all()),
				!strings.Contains(fmt.Sprint(info), fmt.Sprint("cluster_slots_ok:", slots)):
				return fmt.Errorf("%s: %s\n%s", s.Addr(), info, nodes)
			case strings.Contains(role, "role:slave") && !strings.Contains(role, "master_link_status:up"):
				return fmt.Errorf("%s: %s", s.Addr(), role)
			}
			return nil
		})
	}
}

// Move migrates a slot from one master to another. It calls during while each key may be on either master.
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

// Fail kills master i and returns when its replica has taken over.
func (c *Cluster) Fail(i int) {
	c.tb.Helper()
	c.Masters[i].Kill()
	c.Promote(i)
}

// Promote has the other masters elect the replica of master i, which the test has killed, without the nodeTimeout. It
// returns when the replica is a master.
func (c *Cluster) Promote(i int) {
	c.tb.Helper()
	Await(c.tb, func() error {
		err := IsMaster(c.Replicas[i])
		if err != nil { // a repeated command continues the election
			err = errors.Join(err, TryDo(c.Replicas[i], nil, "cluster", "failover", "force"))
		}
		return err
	})
}

// IsMaster returns nil if the server is a master.
func IsMaster(s *Server) error {
	var role any
	err := TryDo(s, &role, "role")
	if list, _ := role.([]any); err == nil && (len(list) == 0 || list[0] != "master") {
		err = fmt.Errorf("its role is %v", role)
	}
	return err
}

// busPort returns the port for the cluster bus.
func busPort(s *Server) string { return s.args[slices.Index(s.args, "--cluster-port")+1] }

// Do sends the server a command and returns the reply; an error fails the test.
func Do(tb testing.TB, s *Server, args ...any) any {
	tb.Helper()
	var answer any
	if err := TryDo(s, &answer, args...); err != nil {
		tb.Fatalf("%v: %v", args, err)
	}
	return answer
}

// TryDo sends the server a command and stores the reply in *answer, unless answer is nil.
func TryDo(s *Server, answer *any, args ...any) error {
	password := ""
	if i := slices.Index(s.args, "--requirepass"); i >= 0 {
		password = s.args[i+1]
	}
	return tryDoAs(s, password, answer, args...)
}

func tryDoAs(s *Server, password string, answer *any, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
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

// Await polls ask until it returns nil. It fails the test if that takes longer than proctest.Patience.
func Await(tb testing.TB, ask func() error) {
	tb.Helper()
	proctest.Await(tb, proctest.Patience, ask)
}
