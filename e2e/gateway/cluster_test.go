//go:build e2e

package gateway

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// cluster is a Kubernetes API without nodes, and a directory for files that containers read.
type cluster struct {
	*podtest.Cluster

	dir string
}

// startCluster runs a cluster that containers reach at the gateway of their network.
func startCluster(t *testing.T, dir string) *cluster {
	t.Helper()
	return &cluster{podtest.StartClusterAt(t, hostIP), dir}
}

// secret writes the entries of a Secret into a directory.
func (c *cluster) secret(t *testing.T, name, dir string) {
	t.Helper()
	var secret struct {
		Data map[string][]byte `json:"data"`
	}
	c.Get(t, &secret, "--namespace", system, "secret", name)
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
