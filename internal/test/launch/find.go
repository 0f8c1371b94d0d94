package launch

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
)

// toolDirs are the folders into which scripts/tools.sh puts programs.
var toolDirs = []string{".tools/venv/bin", ".tools/prometheus/usr/bin", ".tools/nutcracker/usr/sbin", ".tools/bin"}

// Find returns the path of the first of the programs that exists, in the folders of scripts/tools.sh or in PATH. The
// error says how to get a program.
func Find(names ...string) (string, error) {
	for _, name := range names {
		for _, dir := range toolDirs {
			if path, err := Above(filepath.Join(dir, name)); path != "" || err != nil {
				return path, err
			}
		}
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is neither in .tools nor in PATH: scripts/tools.sh installs it", names[0])
}

// Above returns the absolute path of a file in the working directory or the nearest parent directory that has it, or
// "".
func Above(path string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		found := filepath.Join(dir, path)
		if _, err := os.Stat(found); err == nil {
			return found, nil
		}
		if dir == filepath.Dir(dir) {
			return "", nil
		}
		dir = filepath.Dir(dir)
	}
}

// FindEnvoy returns $WEIR_ENVOY if it is set, else the result of Find.
func FindEnvoy() (string, error) {
	if path := os.Getenv("WEIR_ENVOY"); path != "" {
		return path, nil
	}
	path, err := Find("envoy")
	if err != nil {
		err = fmt.Errorf("%w; or set WEIR_ENVOY", err)
	}
	return path, err
}

// The ports are below the ports of outgoing connections. So while a server is stopped, no connection takes its port,
// not even a connection that tries to reach the server.
const lowestPort, ports = 20_000, 12_000

// reserved are UDP sockets with the numbers of the addresses that FreeAddr has returned in this process. While they are
// open, no other test program gets these numbers, even if the server listens late or is stopped for a while.
var reserved sync.Map

// FreeAddr returns a TCP address of 127.0.0.1 that is not in use, and keeps it from other callers, also in other
// programs, until this process ends.
func FreeAddr(ctx context.Context) (addr string, err error) {
	var config net.ListenConfig
	for range 100 {
		addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(lowestPort+rand.IntN(ports)))
		var mark net.PacketConn
		if mark, err = config.ListenPacket(ctx, "udp", addr); err != nil {
			continue
		}
		var l net.Listener
		if l, err = config.Listen(ctx, "tcp", addr); err == nil {
			reserved.Store(addr, mark)
			return addr, l.Close()
		}
		_ = mark.Close()
	}
	return "", fmt.Errorf("no free TCP port found: %w", err)
}

// Get returns the response's body; any status but 200 is an error.
func Get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s: %s", url, resp.Status, body)
	}
	return body, err
}

// Ready returns nil if the URL responds with status 200.
func Ready(ctx context.Context, url string) error {
	_, err := Get(ctx, url)
	return err
}

// Dial returns nil if a server listens on the address.
func Dial(ctx context.Context, network, addr string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return err
	}
	return conn.Close()
}
