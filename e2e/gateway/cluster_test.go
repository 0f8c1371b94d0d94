package gateway

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// cluster is a Kubernetes API without nodes.
type cluster struct {
	dir        string
	kubeconfig string
}

const kubeconfig = `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://SERVER:6443", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: secret}}]
contexts: [{name: c, context: {cluster: c, user: admin}}]
current-context: c
`

// startCluster runs etcd and kube-apiserver until the test ends.
func startCluster(t *testing.T, dir string) *cluster {
	t.Helper()
	c := &cluster{dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig")}
	write(t, c.kubeconfig, strings.ReplaceAll(kubeconfig, "SERVER", "127.0.0.1"))
	write(t, filepath.Join(dir, "tokens.csv"), "secret,admin,1,system:masters\n")
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(dir, "accounts.pem")
	block := pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	write(t, keyFile, string(pem.EncodeToMemory(&block)))

	proctest.Start(t, "etcd", exec.Command(tool("etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--log-level", "error"))
	server := proctest.Start(t, "kube-apiserver", exec.Command(tool("kube-apiserver"),
		"--etcd-servers=http://127.0.0.1:2379", "--secure-port=6443", "--cert-dir="+filepath.Join(dir, "apiserver"),
		"--advertise-address="+hostIP, "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-key-file="+keyFile, "--service-account-signing-key-file="+keyFile,
		"--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file="+filepath.Join(dir, "tokens.csv"),
		"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount"))
	podtest.Await(t, patience, func() error {
		select {
		case <-server.Exited():
			t.Fatal(server.Died())
		default:
		}
		_, err := c.try("", "get", "--raw", "/readyz")
		return err
	})
	return c
}

// try runs kubectl with the text as its standard input.
func (c *cluster) try(stdin string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(tool("kubectl"), append([]string{"--kubeconfig", c.kubeconfig}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// kubectl is try for a command that must succeed.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try("", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply applies manifests. The API server may know a new type a little later than it accepted it.
func (c *cluster) apply(t *testing.T, manifest string) {
	t.Helper()
	podtest.Await(t, patience, func() error {
		_, err := c.try(manifest, "apply", "--server-side", "--force-conflicts", "-f", "-")
		return err
	})
}

// get reads one object, and waits until there is one.
func (c *cluster) get(t *testing.T, into any, args ...string) (text string) {
	t.Helper()
	podtest.Await(t, patience, func() error {
		out, err := c.try("", append([]string{"get", "-o", "json"}, args...)...)
		if err != nil {
			return err
		}
		text = out
		return json.Unmarshal([]byte(out), into)
	})
	return text
}

// secret writes the entries of a Secret into a directory.
func (c *cluster) secret(t *testing.T, name, dir string) {
	t.Helper()
	var secret struct {
		Data map[string][]byte `json:"data"`
	}
	c.get(t, &secret, "--namespace", system, "secret", name)
	for file, content := range secret.Data {
		write(t, filepath.Join(dir, file), string(content))
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
