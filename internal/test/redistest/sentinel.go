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

// MasterName is what sentinels call the master.
const MasterName = "weir-master"

// SentinelPassword is the sentinel's.
const SentinelPassword = "s3ntinel"

// Sentinel is a Redis Sentinel that watches a master and its replica.
type Sentinel struct {
	Master, Replica *Server
	own             *Server // where its socket is
	port            int
}

// StartSentinel runs a master, a replica and a sentinel, which asks for SentinelPassword, and returns when the sentinel
// knows both. The servers have further arguments.
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
		"sentinel monitor %s 127.0.0.1 %d 1\nsentinel down-after-milliseconds %[5]s 500\nsentinel failover-timeout %[5]s 3000\n",
		s.port, s.own.Socket(), dir, SentinelPassword, MasterName, s.Master.port)
	if i := slices.Index(args, "--requirepass"); i >= 0 {
		text += fmt.Sprintf("sentinel auth-pass %s %s\n", MasterName, args[i+1])
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(s.Master.binary, config, "--sentinel")
	proc := proctest.Start(tb, "redis-sentinel", cmd)
	proc.Await(2*patience, func() error {
		var answer any
		err := tryDoAs(s.own, SentinelPassword, &answer, "sentinel", "replicas", MasterName)
		if text := fmt.Sprint(answer); err == nil && (!strings.Contains(text, "master-link-status ok") || !strings.Contains(text, "flags slave ")) {
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

// AwaitMaster returns when the sentinel says that s is the master. It says so up to a second after s is.
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

// URL names the sentinel, behind one where nothing listens.
func (s *Sentinel) URL() string {
	return "redis+sentinel://127.0.0.1:1," + net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) + "/" + MasterName +
		"/0?sentinel_password=" + SentinelPassword
}
