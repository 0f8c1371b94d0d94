package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// MasterName is the master's name in the Sentinel.
const MasterName = "weir-master"

// SentinelPassword is the password of the Sentinel.
const SentinelPassword = "s3ntinel"

// Sentinel is a Redis Sentinel that watches a master and its replica.
type Sentinel struct {
	Master, Replica *Server
	own             *Server // only with the Unix socket, for TryDo
	port            int
}

// StartSentinel runs a master and a replica, both with further arguments, and a Sentinel with SentinelPassword. It
// returns when the Sentinel knows both servers.
func StartSentinel(tb testing.TB, args ...string) *Sentinel {
	tb.Helper()
	s := &Sentinel{}
	s.Master = Start(tb, append([]string{"--repl-diskless-sync-delay", "0"}, args...)...)
	s.Replica = Start(tb, append([]string{
		"--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1 " + strconv.Itoa(s.Master.port),
	}, args...)...)
	s.port = proctest.FreePort(tb)
	dir := shortTempDir(tb)
	s.own = &Server{dir: dir}
	config := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("bind 127.0.0.1\nport %d\nunixsocket %s\ndir %s\nrequirepass %s\n"+
		"sentinel monitor %s 127.0.0.1 %d 1\nsentinel down-after-milliseconds %[5]s 500\n"+
		"sentinel failover-timeout %[5]s 3000\n", s.port, s.own.Socket(), dir, SentinelPassword, MasterName, s.Master.port)
	if i := slices.Index(args, "--requirepass"); i >= 0 {
		text += fmt.Sprintf("sentinel auth-pass %s %s\n", MasterName, args[i+1])
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(s.Master.binary, config, "--sentinel")
	proctest.Start(tb, "redis-sentinel", cmd).Await(proctest.Patience, func() error {
		var answer any
		err := tryDoAs(s.own, SentinelPassword, &answer, "sentinel", "replicas", MasterName)
		text := fmt.Sprint(answer)
		if err == nil && (!strings.Contains(text, "master-link-status ok") || !strings.Contains(text, "flags slave ")) {
			err = fmt.Errorf("the sentinel says %s", text)
		}
		return err
	})
	return s
}

// Failover makes the replica the master, and the master its replica.
func (s *Sentinel) Failover(tb testing.TB) {
	tb.Helper()
	if err := tryDoAs(s.own, SentinelPassword, nil, "sentinel", "failover", MasterName); err != nil {
		tb.Fatal(err)
	}
}

// AwaitMaster waits until the Sentinel reports the server as the master, which takes up to a second.
func (s *Sentinel) AwaitMaster(tb testing.TB, server *Server) {
	tb.Helper()
	Await(tb, func() error {
		var answer any
		err := tryDoAs(s.own, SentinelPassword, &answer, "sentinel", "get-master-addr-by-name", MasterName)
		if got, want := fmt.Sprint(answer), fmt.Sprintf("[127.0.0.1 %d]", server.port); err == nil && got != want {
			err = fmt.Errorf("the sentinel says that %s is the master, want %s", got, want)
		}
		return err
	})
}

// URL returns a URL with an address that is not in use, followed by the Sentinel.
func (s *Sentinel) URL() string {
	return "redis+sentinel://127.0.0.1:1," + net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) + "/" + MasterName +
		"/0?sentinel_password=" + SentinelPassword
}
