//go:build e2e

package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	service "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// TestGoldens serves every rate limit configuration of Envoy Gateway's own tests, one after the other, to a process
// started as ratelimit, and asks for each limit. The files are read from its module.
func TestGoldens(t *testing.T) {
	dir := filepath.Join(moduleDir(t), "internal/xds/translator/testdata/out/ratelimit-config")
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, ".routes.yaml") })
	if len(files) < 20 {
		t.Fatalf("%d files in %s", len(files), dir)
	}
	xds, version := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{}), 0
	set := func(configs []*config.RateLimitConfig) {
		version++
		xds.Set(strconv.Itoa(version), configs...)
	}
	redis := redistest.Start(t)
	svc := startProcess(t, xds.Addr, redis.Addr())
	counters := redistest.Client(t, redis.URL(), patience)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			// Files name the same limits.
			if err := counters.FlushDB(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			configs := readGolden(t, file)
			set(configs)
			svc.await(t, configs)
			for _, c := range configs {
				for _, l := range leaves(c.GetDescriptors(), nil) {
					svc.check(t, c.GetDomain(), l)
				}
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		set(nil)
		svc.await(t, nil)
	})
}

// moduleDir is where the Go command keeps Envoy Gateway.
func moduleDir(t *testing.T) string {
	t.Helper()
	var answer struct{ Dir string }
	out := podtest.Command(t, "go", "mod", "download", "-json", gatewayModule)
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Dir
}

// readGolden reads the documents of one file.
func readGolden(t *testing.T, file string) (configs []*config.RateLimitConfig) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it is only read
	for decoder := yaml.NewDecoder(f); ; {
		var document any
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return configs
		} else if err != nil {
			t.Fatal(err)
		}
		if document == nil {
			continue
		}
		text, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		c := &config.RateLimitConfig{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, c); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		configs = append(configs, c)
	}
}

// leaf is a limit and the entries that reach it.
type leaf struct {
	entries []*ratelimit.RateLimitDescriptor_Entry
	limit   *config.RateLimitPolicy
	shadow  bool
}

func leaves(descriptors []*config.RateLimitDescriptor, above []*ratelimit.RateLimitDescriptor_Entry) (found []leaf) {
	for _, d := range descriptors {
		value := d.GetValue()
		if value == "" {
			value = "any"
		}
		entries := append(slices.Clone(above), &ratelimit.RateLimitDescriptor_Entry{Key: d.GetKey(), Value: value})
		if d.GetRateLimit() != nil {
			found = append(found, leaf{entries, d.GetRateLimit(), d.GetShadowMode()})
		}
		found = append(found, leaves(d.GetDescriptors(), entries)...)
	}
	return found
}

// process is a service started as ratelimit, by environment alone.
type process struct {
	*proctest.Process
	debug  string
	client service.RateLimitServiceClient
}

func startProcess(t *testing.T, xds, redis string) *process {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ratelimit")
	binary := proctest.Program(t, "service_cmd")
	if !peer {
		binary = proctest.WeirBinary(t)
	}
	if err := os.Symlink(binary, name); err != nil {
		t.Fatal(err)
	}
	grpcPort, httpPort, debugPort := proctest.FreePort(t), proctest.FreePort(t), proctest.FreePort(t)
	cmd := exec.Command(name)
	cmd.Env = []string{
		"LOG_LEVEL=info", "USE_STATSD=false", "FORCE_START_WITHOUT_INITIAL_CONFIG=true", "CONFIG_TYPE=GRPC_XDS_SOTW",
		"CONFIG_GRPC_XDS_SERVER_URL=" + xds, "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit", "REDIS_SOCKET_TYPE=tcp",
		"REDIS_URL=" + redis, fmt.Sprint("GRPC_PORT=", grpcPort), fmt.Sprint("PORT=", httpPort),
		fmt.Sprint("DEBUG_PORT=", debugPort),
	}
	p := &process{Process: proctest.Start(t, "ratelimit", cmd), debug: fmt.Sprint("http://127.0.0.1:", debugPort)}
	p.Await(patience, func() error { return ok(fmt.Sprint("http://127.0.0.1:", httpPort, "/healthcheck")) })
	conn, err := grpc.NewClient(fmt.Sprint("127.0.0.1:", grpcPort),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p.client = service.NewRateLimitServiceClient(conn)
	return p
}

// await waits until the process shows exactly the limits of the configurations.
func (p *process) await(t *testing.T, configs []*config.RateLimitConfig) {
	t.Helper()
	var want []string
	for _, c := range configs {
		for _, l := range leaves(c.GetDescriptors(), nil) {
			want = append(want, line(c.GetDomain(), l))
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	p.Await(patience, func() error {
		_, _, body, err := request(http.MethodGet, p.debug+"/rlconfig", nil)
		if err != nil {
			return err
		}
		got := strings.FieldsFunc(body, func(r rune) bool { return r == '\n' })
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("/rlconfig has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
}

// line returns the line of /rlconfig about a limit.
func line(domain string, l leaf) string {
	var b strings.Builder
	b.WriteString(domain)
	for _, e := range l.entries {
		b.WriteString("." + e.GetKey())
		if e.GetValue() != "any" {
			b.WriteString("_" + e.GetValue())
		}
	}
	fmt.Fprintf(&b, ": unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: false",
		l.limit.GetUnit(), l.limit.GetRequestsPerUnit(), l.shadow)
	return b.String()
}

// check asks for the limit.
func (p *process) check(t *testing.T, domain string, l leaf) {
	t.Helper()
	answer, err := p.client.ShouldRateLimit(t.Context(), &service.RateLimitRequest{
		Domain: domain, Descriptors: []*ratelimit.RateLimitDescriptor{{Entries: l.entries}},
	})
	if err != nil {
		t.Errorf("%s %v: %v", domain, l.entries, err)
		return
	}
	status := answer.GetStatuses()[0]
	limit := status.GetCurrentLimit()
	if status.GetCode() != service.RateLimitResponse_OK ||
		limit.GetRequestsPerUnit() != l.limit.GetRequestsPerUnit() || limit.GetUnit().String() != l.limit.GetUnit().String() {
		t.Errorf("%s %v: %v, want OK with the limit %v", domain, l.entries, status, l.limit)
	}
}
