package proctest

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// anyAdminPort is merged into every configuration, so that no two Envoys have the same admin port.
const anyAdminPort = `{admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}}`

// Envoy is a running Envoy.
type Envoy struct {
	*Process

	// Admin is the host:port of the admin interface. The configuration does not affect it.
	Admin string

	tb        testing.TB
	adminFile string // file to which Envoy writes its admin address
}

// EnvoyOptions are the options of an Envoy.
type EnvoyOptions struct {
	// Workers is the number of worker threads; 0 means one.
	Workers int
	// Modules is the folder with dynamic modules, or "".
	Modules string
	// Dir is the folder in which Envoy starts; if empty, the test's.
	Dir string
	// HotRestart allows another Envoy to take over. Args must have the base ID and the epoch.
	HotRestart bool
	// Args are further arguments.
	Args []string
}

// StartEnvoy runs an Envoy with a bootstrap configuration in YAML, waits until it is live, and kills it when the test
// ends. Listeners may have port 0; Listener returns the actual port. Under -short StartEnvoy skips the test; without an
// Envoy it fails the test.
func StartEnvoy(tb testing.TB, config string) *Envoy {
	tb.Helper()
	return StartEnvoyWith(tb, config, EnvoyOptions{})
}

// StartEnvoyWith is StartEnvoy with options.
func StartEnvoyWith(tb testing.TB, config string, o EnvoyOptions) *Envoy {
	tb.Helper()
	e := LaunchEnvoy(tb, config, o)
	e.AwaitLive()
	return e
}

// LaunchEnvoy is StartEnvoyWith without waiting, for an Envoy that may refuse its configuration.
func LaunchEnvoy(tb testing.TB, config string, o EnvoyOptions) *Envoy {
	tb.Helper()
	SkipIfShort(tb, "Envoy")
	binary, err := launch.FindEnvoy()
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	file, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	args := []string{
		"--config-path", file, "--config-yaml", anyAdminPort, "--admin-address-path", admin,
		"--concurrency", strconv.Itoa(max(o.Workers, 1)), "--log-level", "warning",
	}
	if !o.HotRestart {
		args = append(args, "--disable-hot-restart")
	}
	cmd := exec.Command(binary, append(args, o.Args...)...)
	cmd.Dir = o.Dir
	if o.Modules != "" {
		cmd.Env = append(os.Environ(), "ENVOY_DYNAMIC_MODULES_SEARCH_PATH="+o.Modules)
	}
	return &Envoy{tb: tb, Process: Start(tb, "envoy", cmd), adminFile: admin}
}

// AwaitLive waits until Envoy is live, and sets Admin.
func (e *Envoy) AwaitLive() {
	e.tb.Helper()
	e.Await(Patience, func() error {
		addr, err := os.ReadFile(e.adminFile)
		if err != nil {
			return err
		}
		e.Admin = string(addr)
		_, err = e.get("/ready")
		return err
	})
}

// Listener returns the host:port of the named listener.
func (e *Envoy) Listener(name string) string {
	e.tb.Helper()
	var answer struct {
		Listeners []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	body, err := e.get("/listeners?format=json")
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	if err != nil {
		e.tb.Fatalf("ask Envoy for its listeners: %v", err)
	}
	for _, l := range answer.Listeners {
		if l.Name == name {
			return net.JoinHostPort(l.Address.Socket.Address, strconv.Itoa(l.Address.Socket.Port))
		}
	}
	e.tb.Fatalf("Envoy has no listener %q: %s", name, body)
	return ""
}

// Stat returns the value of a counter or gauge by its full name, such as "cluster.weir.upstream_rq_timeout", or 0 if
// Envoy does not know it: Envoy creates many only at their first count.
func (e *Envoy) Stat(name string) uint64 {
	e.tb.Helper()
	body, err := e.get("/stats")
	if err != nil {
		e.tb.Fatalf("ask Envoy for its stats: %v", err)
	}
	for line := range strings.Lines(string(body)) {
		value, ok := strings.CutPrefix(line, name+": ")
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		if err != nil {
			e.tb.Fatalf("Envoy's stat %s: %v", name, err)
		}
		return n
	}
	return 0
}

// get reads a page of the admin interface; any status but 200 is an error.
func (e *Envoy) get(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return launch.Get(ctx, "http://"+e.Admin+path)
}
