package podtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// clusterPatience is the maximum time of a step on a busy machine.
const clusterPatience = 2 * time.Minute

// Cluster is a Kubernetes API for one test: a real etcd and a real kube-apiserver on their own ports. It has no nodes
// and no controllers, so objects are checked, defaulted and stored, but no pod starts. Its methods are safe for
// concurrent use.
type Cluster struct {
	// URL is the URL of kube-apiserver.
	URL string
	// Kubeconfig is the path of a kubeconfig file for an administrator.
	Kubeconfig string
	// Program is the path of kubectl.
	Program string
}

// StartCluster runs a cluster on 127.0.0.1. It skips the test, with a hint, if the programs are not built.
func StartCluster(tb testing.TB) *Cluster {
	tb.Helper()
	return StartClusterAt(tb, "127.0.0.1")
}

// StartClusterAt is StartCluster for a cluster that programs in other network namespaces can reach at the IP address
// host, which must belong to this machine.
func StartClusterAt(tb testing.TB, host string) *Cluster {
	tb.Helper()
	proctest.SkipIfShort(tb, "kube-apiserver")
	etcd, apiserver, kubectl := program(tb, "etcd"), program(tb, "kube-apiserver"), program(tb, "kubectl")
	dir := tb.TempDir()
	port := strconv.Itoa(proctest.FreePort(tb))
	c := &Cluster{
		URL:        "https://" + net.JoinHostPort(host, port),
		Kubeconfig: filepath.Join(dir, "kubeconfig"),
		Program:    kubectl,
	}
	accounts, signing := proctest.NewAuthority(tb).Issue("accounts") // signs tokens of service accounts
	tokens := filepath.Join(dir, "tokens.csv")
	write(tb, c.Kubeconfig, strings.ReplaceAll(kubeconfig, "URL", c.URL))
	write(tb, tokens, "secret,admin,1,system:masters\n")

	clients, peers := "http://"+proctest.FreeAddr(tb), "http://"+proctest.FreeAddr(tb)
	proctest.Start(tb, "etcd", exec.Command(etcd, "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--log-level", "error", "--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers))
	bind := "0.0.0.0"
	if net.ParseIP(host).IsLoopback() {
		bind = host
	}
	server := proctest.Start(tb, "kube-apiserver", exec.Command(apiserver,
		"--etcd-servers="+clients, "--bind-address="+bind, "--secure-port="+port, "--cert-dir="+filepath.Join(dir, "certs"),
		"--advertise-address="+advertised(host), "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16", "--service-account-key-file="+accounts,
		"--service-account-signing-key-file="+signing, "--service-account-issuer=https://kubernetes.default.svc",
		"--token-auth-file="+tokens, "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount"))
	server.Await(clusterPatience, func() error {
		_, err := c.Try("", "get", "--raw", "/readyz")
		return err
	})
	server.Await(clusterPatience, func() error { // it is created after /readyz responds
		_, err := c.Try("", "get", "namespace", "default")
		return err
	})
	return c
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "URL", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: secret}}]
contexts: [{name: c, context: {cluster: c, user: admin}}]
current-context: c
`

// advertised returns the address at which pods would reach the server. It must not be a loopback address.
func advertised(host string) string {
	if net.ParseIP(host).IsLoopback() {
		return "192.0.2.1"
	}
	return host
}

// program returns the path of a program, or skips the test.
func program(tb testing.TB, name string) string {
	tb.Helper()
	path, err := launch.Above(filepath.Join(".tools/bin", name))
	if err != nil {
		tb.Fatal(err)
	}
	if path == "" {
		tb.Skipf("not run: %s is not in .tools/bin; scripts/tools.sh kubernetes builds it in about five minutes", name)
	}
	return path
}

func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// Try runs kubectl with the text as its standard input, and returns its standard output.
func (c *Cluster) Try(stdin string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(c.Program, append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// Kubectl is Try for a command that must succeed.
func (c *Cluster) Kubectl(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := c.Try("", args...)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// DryRun makes the server check manifests strictly, without storing them: an unknown field is an error. It returns
// kubectl's output, a line per object.
func (c *Cluster) DryRun(manifest string) (string, error) {
	return c.Try(manifest, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
}

// Apply applies manifests strictly by server-side apply. It retries for a while, because the server may serve a new
// type only some time after accepting it.
func (c *Cluster) Apply(tb testing.TB, manifest string) {
	tb.Helper()
	proctest.Await(tb, clusterPatience, func() error {
		_, err := c.Try(manifest, "apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-")
		return err
	})
}

// CRDs applies the custom resource definitions of files or directories, and waits until the server serves them.
func (c *Cluster) CRDs(tb testing.TB, paths ...string) {
	tb.Helper()
	args := []string{"apply", "--server-side", "--recursive"}
	for _, path := range paths {
		args = append(args, "-f", path)
	}
	c.Kubectl(tb, args...)
	c.Kubectl(tb, "wait", "--for=condition=Established", "--timeout="+clusterPatience.String(), "crd", "--all")
}

// Get reads objects in the form of kubectl get -o json. It waits until the server has them.
func (c *Cluster) Get(tb testing.TB, into any, args ...string) (text string) {
	tb.Helper()
	proctest.Await(tb, clusterPatience, func() error {
		out, err := c.Try("", append([]string{"get", "-o", "json"}, args...)...)
		if err != nil {
			return err
		}
		text = out
		return json.Unmarshal([]byte(out), into)
	})
	return text
}
