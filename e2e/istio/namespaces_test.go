//go:build e2e && linux

package istio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// inside is set where the test runs in namespaces of its own, to the directory of its files.
const inside = "WEIR_TEST_MESH"

// enter runs the test again in namespaces of its own and returns "" when that run has ended. In that run it returns
// the directory of the test's files. Ports and firewall rules meet nobody else's, and everything ends with them.
func enter(t *testing.T, within time.Duration, programs ...string) (dir string) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a mesh: left out by -short")
	}
	if dir := os.Getenv(inside); dir != "" {
		return dir
	}
	if os.Getuid() != 0 {
		t.Fatal("network namespaces need root")
	}
	for _, program := range append([]string{"ip", "iptables", "iptables-restore", "unshare", "setpriv"}, programs...) {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: scripts/tools.sh containers kubernetes istio gets it", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const prepare = `
ip link set lo up && mount -t tmpfs tmpfs /run && mkdir /run/netns && chmod 0755 "$DIR"/.. "$DIR" &&
printf '127.0.0.1 localhost\n%s istiod.istio-system.svc\n' "$HOST_IP" >"$DIR/hosts" &&
mount --bind "$DIR/hosts" /etc/hosts &&
printf '' >"$DIR/resolv.conf" && mount --bind "$DIR/resolv.conf" /etc/resolv.conf &&
ip link add pods type bridge && ip addr add "$HOST_IP/24" dev pods && ip link set pods up && exec "$@"`
	cmd := exec.CommandContext(t.Context(), "setpriv", "--pdeathsig", "KILL",
		"unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", prepare, "sh",
		self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout", within.String())
	dir = t.TempDir()
	cmd.Env = append(os.Environ(), inside+"="+dir, "DIR="+dir, "HOST_IP="+hostIP)
	out, err := cmd.CombinedOutput()
	t.Logf("in the namespaces:\n%s", out)
	if err != nil {
		t.Error(err)
	}
	return ""
}

// namespace is a network namespace, for a pod or for a client outside the mesh.
type namespace struct{ name string }

// namespace makes one with an address in the network of the pods.
func (m *mesh) namespace(t *testing.T, name, ip string) *namespace {
	t.Helper()
	inner := "eth-" + name
	inner = inner[:min(len(inner), 15)]
	run(t, "ip", "netns", "add", name)
	run(t, "ip", "link", "add", inner, "type", "veth", "peer", "name", "eth0", "netns", name)
	run(t, "ip", "link", "set", inner, "master", "pods", "up")
	run(t, "ip", "-n", name, "link", "set", "lo", "up")
	run(t, "ip", "-n", name, "addr", "add", ip+"/24", "dev", "eth0")
	run(t, "ip", "-n", name, "link", "set", "eth0", "up")
	run(t, "ip", "-n", name, "route", "add", "default", "via", hostIP)
	return &namespace{name: name}
}

// command is a command that runs in the namespace, as a user with a group, in a directory, with exactly these
// environment variables.
func (n *namespace) command(user, group int, dir string, env []string, name string, args ...string) *exec.Cmd {
	full := append([]string{
		"netns", "exec", n.name, "setpriv", "--reuid", strconv.Itoa(user), "--regid", strconv.Itoa(group), "--clear-groups",
		"--pdeathsig", "KILL", name,
	}, args...)
	cmd := exec.Command("ip", full...)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}, env...)
	return cmd
}

// answer is a response to a client.
type answer struct {
	Status int
	Header http.Header
	Body   string
	Err    string
}

// question is a client's request and the number of times to send it; 0 means once.
type question struct {
	Method, URL, Host string
	Header            http.Header
	Times             int
}

// one sends a single request from the namespace.
func (n *namespace) one(t *testing.T, q question) answer {
	t.Helper()
	q.Times = 1
	return n.send(t, q)[0]
}

// send sends requests from the namespace.
func (n *namespace) send(t *testing.T, q question) []answer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	out, err := n.command(0, 0, "/", []string{"WEIR_TEST_SEND=" + string(text)}, self).Output()
	if err != nil {
		t.Fatalf("send from %s: %v", n.name, err)
	}
	var answers []answer
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatalf("send from %s: %v\n%s", n.name, err, out)
	}
	return answers
}

// sendFromHere is the program that send runs.
func sendFromHere(text string) {
	var q question
	if err := json.Unmarshal([]byte(text), &q); err != nil {
		panic(err)
	}
	var answers []answer
	for range q.Times {
		answers = append(answers, q.send())
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		panic(err)
	}
}

func (q question) send() answer {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.Method, q.URL, http.NoBody)
	if err != nil {
		return answer{Err: err.Error()}
	}
	maps.Copy(req.Header, q.Header)
	req.Host = q.Host
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{Err: err.Error()}
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return answer{Err: err.Error()}
	}
	return answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body)}
}

// echo is the service in a pod.
func echo(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s\n", r.Method, r.URL.Path)
	for name := range r.Header {
		fmt.Fprintf(w, "%s: %s\n", name, strings.Join(r.Header[name], ", "))
	}
}

// serve runs the service of a pod at port 8080.
func (n *namespace) serve(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	proctest.Start(t, "service of "+n.name, n.command(1000, 1000, "/", []string{"WEIR_TEST_SERVE=:8080"}, self))
}
