//go:build e2e

package rlqs

import (
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/test/envoytest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// TestTokenBucketWithoutAssignment shows that Envoy dies of a token_bucket in no_assignment_behavior.
func TestTokenBucketWithoutAssignment(t *testing.T) {
	t.Parallel()
	server := startQuotaServer(t, "")
	envoy := envoytest.Start(t, bootstrap([]string{quotaListener("crash", "crash", "rlqs", "", "")},
		[]string{cluster("rlqs", grpcOptions, server.addr)}))
	c := newClient(t, envoy, "crash")
	if r := c.get(t, "x-settings", "bucket", "x-bucket", "crash"); r.Status != 200 {
		t.Fatalf("first request: %d", r.Status)
	}
	await(t, "Envoy dies of a further request", func() bool {
		_, err := c.try(t, "x-settings", "bucket", "x-bucket", "crash")
		return err != nil
	})
	if code := envoy.Wait(patience); code == 0 || !strings.Contains(envoy.Output(), "Caught Segmentation fault") {
		t.Fatalf("Envoy ended with %d, want a crash:\n%s", code, envoy.Output())
	}
}

// TestPerRoute shows that Envoy refuses a route's configuration of the filter.
func TestPerRoute(t *testing.T) {
	t.Parallel()
	envoy := envoytest.Launch(t, bootstrap([]string{quotaListener("front", "shop", "rlqs", "", otherDomain)},
		[]string{cluster("rlqs", grpcOptions, "127.0.0.1:1")}), envoytest.Options{})
	if code := envoy.Wait(patience); code != 1 || !strings.Contains(envoy.Output(), "doesn't support virtual host or route") {
		t.Fatalf("Envoy ended with %d:\n%s", code, envoy.Output())
	}
}

// TestEnds shows that the server sees the same end of a stream when a listener is removed and when Envoy ends or is
// killed.
func TestEnds(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"listener removed", "exit", "killed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := startQuotaServer(t, "")
			dir := t.TempDir()
			listeners := func(text string) {
				proctest.Replace(t, filepath.Join(dir, "lds.yaml"), "resources: ["+text+"]\n")
			}
			l := quotaListener("ends", "ends", "rlqs", "", "")
			listeners(`{"@type": type.googleapis.com/envoy.config.listener.v3.Listener, ` + l[1:])
			envoy := envoytest.StartWith(t, "node: {id: a, cluster: b}\n"+
				"dynamic_resources: {lds_config: {path_config_source: {path: "+dir+"/lds.yaml}, resource_api_version: V3}}\n"+
				bootstrap(nil, []string{cluster("rlqs", grpcOptions, server.addr)}),
				envoytest.Options{Args: []string{"--drain-time-s", "1"}})
			c := newClient(t, envoy, "ends")
			c.get(t, "x-settings", "allow", "x-bucket", "ends")
			c.HTTP.CloseIdleConnections()
			await(t, "the first report", func() bool { return len(server.ofDomain("ends")) == 1 })
			conns := 0
			switch how {
			case "exit":
				envoy.Terminate(patience)
			case "killed":
				envoy.Kill()
			default:
				listeners("")
				conns = 1
			}
			st := server.streamsOf("ends")[0]
			await(t, "the end", func() bool { return server.receivedError(st) != nil })
			if err := server.receivedError(st); status.Code(err) != codes.Canceled {
				t.Errorf("%v, want Canceled however it ends", err)
			}
			await(t, "the connection ends with Envoy, and not with the filter", func() bool {
				return server.openConns() == conns
			})
		})
	}
}
