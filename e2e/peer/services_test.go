//go:build e2e

package peer

import (
	"context"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// patience is how long a service may take to start on a busy machine.
const patience = proctest.Patience

// env is an environment: variables and their values.
type env map[string]string

// with returns a copy that has the other's variables, too.
func (e env) with(other env) env {
	both := maps.Clone(e)
	maps.Copy(both, other)
	return both
}

// service is one of the two services that are compared.
type service struct {
	*proctest.Process

	name        string // "peer" or "weir"
	http, debug string // host:port
	conn        *grpc.ClientConn
	client      pb.RateLimitServiceClient
}

// pair is the peer and Weir with the same environment and rules.
type pair struct {
	peer, weir *service
	settings   env
}

// startPair starts both with a Redis of their own.
func startPair(t *testing.T, root string, settings env) *pair {
	t.Helper()
	return &pair{
		settings: settings,
		peer:     startService(t, "peer", proctest.Program(t, "service_cmd"), root, settings),
		weir:     startService(t, "weir", weirAsRatelimit(t), root, settings),
	}
}

// weirAsRatelimit returns the path of a link named ratelimit to the weir program: by that name it takes the peer's
// place.
func weirAsRatelimit(t *testing.T) string {
	t.Helper()
	link := filepath.Join(t.TempDir(), "ratelimit")
	if err := os.Symlink(proctest.WeirBinary(t), link); err != nil {
		t.Fatal(err)
	}
	return link
}

// startService starts a service with the rules below root and returns when it listens, and no hour, day or week ends
// soon.
func startService(t *testing.T, name, binary, root string, settings env) *service {
	t.Helper()
	all := env{
		"RUNTIME_ROOT": root, "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_WATCH_ROOT": "false",
		"RUNTIME_IGNOREDOTFILES": "true", "LOG_LEVEL": "WARN", "USE_STATSD": "false", "DISABLE_STATS": "true",
		"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": redistest.Start(t).Addr(), "REDIS_PERSECOND_SOCKET_TYPE": "tcp",
	}.with(settings)
	if all["REDIS_PERSECOND"] == "true" {
		all["REDIS_PERSECOND_URL"] = redistest.Start(t).Addr()
	}
	s := &service{name: name, http: proctest.FreeAddr(t), debug: proctest.FreeAddr(t)}
	grpcAddr := proctest.FreeAddr(t)
	all["HOST"], all["PORT"] = split(t, s.http)
	all["DEBUG_HOST"], all["DEBUG_PORT"] = split(t, s.debug)
	all["GRPC_HOST"], all["GRPC_PORT"] = split(t, grpcAddr)

	cmd := exec.Command(binary)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		cmd.Env = append(cmd.Env, key+"="+all[key])
	}
	s.Process = proctest.Start(t, name, cmd)
	ctx := context.Background()
	s.Await(patience, func() error { return launch.Dial(ctx, "tcp", grpcAddr) })
	conn, err := grpc.NewClient(grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.conn, s.client = conn, pb.NewRateLimitServiceClient(conn)
	awaitWindow(3600)
	return s
}

func split(t *testing.T, addr string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

// writeRules writes rule files, by name, where both services read them, and returns the root.
func writeRules(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	dir := filepath.Join(root, "ratelimit", "config")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
