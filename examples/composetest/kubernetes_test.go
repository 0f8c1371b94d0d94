//go:build e2e

package composetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// Addresses of the pods of deploy/kubernetes, and the image that they name.
const (
	chartNetwork, chartWeir, chartEnvoy = "10.91.0.0/24", "10.91.0.21", "10.91.0.22"

	chartImage = "ghcr.io/weir-ratelimit/weir:0.1.0"
)

// chartPods runs the pods of deploy/kubernetes, which the Helm chart makes: Weir with its rules from the ConfigMap, and
// an Envoy that asks it by gRPC. An edit of the ConfigMap reaches the process, which is not started again.
func chartPods(t *testing.T, dir string) {
	command(t, "podman", "tag", "weir_weir", chartImage)
	podtest.Hosts(t, dir, chartWeir+" weir")
	command(t, "podman", "network", "create", "--subnet", chartNetwork, "chart")
	text := read(t, "../../deploy/kubernetes/weir.yaml")
	documents := map[string]string{}
	for document := range strings.SplitSeq(text, "\n---\n") {
		documents[submatches(`(?m)^kind: (\S+)$`, document)[0]] = document
	}
	var rules struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte(documents["ConfigMap"]), &rules); err != nil {
		t.Fatal(err)
	}
	if len(rules.Data) == 0 {
		t.Fatalf("no rules in\n%s", documents["ConfigMap"])
	}
	mount := &mountedConfigMap{dir: filepath.Join(dir, "rules")}
	mount.write(t, rules.Data)
	volume := regexp.MustCompile(`configMap: \{name: "?weir-rules"?\}`)
	if len(volume.FindAllString(documents["Deployment"], -1)) != 1 {
		t.Fatalf("the pod does not mount the ConfigMap:\n%s", documents["Deployment"])
	}
	weir := filepath.Join(dir, "weir.yaml")
	pod := volume.ReplaceAllString(documents["Deployment"], fmt.Sprintf("hostPath: {path: %q}", mount.dir))
	if err := os.WriteFile(weir, []byte(pod), 0o600); err != nil {
		t.Fatal(err)
	}
	play := func(file, ip string) {
		t.Cleanup(func() { command(t, "podman", "kube", "down", file) })
		command(t, "podman", "kube", "play", "--network", "chart", "--ip", ip, file)
	}
	play(weir, chartWeir)
	t.Cleanup(func() { podtest.Logs(t) })
	await(t, func() error { return answers(t, "http://"+chartWeir+":8080/readyz", 200) })
	play("../../deploy/kubernetes/envoy.yaml", chartEnvoy)

	// Until Envoy has found Weir, requests pass without a limit.
	const front, burst = "http://" + chartEnvoy + ":10000", 10
	await(t, func() error { return answers(t, front+"/", 200) })
	passed := 0
	await(t, func() error {
		err := answers(t, front+"/", 429)
		if err != nil {
			passed++
		}
		return err
	})
	t.Logf("%d requests passed, those before Envoy had found Weir included", passed+1)
	if denied := requests(t, "over_limit"); denied < 1 {
		t.Errorf("Weir has denied %v requests, but Envoy answers 429", denied)
	}
	if admitted := requests(t, "ok"); admitted != burst {
		t.Errorf("Weir has admitted %v requests, want the burst of %d", admitted, burst)
	}
	if err := answers(t, front+"/login", 200); err != nil {
		t.Errorf("a route with a limit of its own: %v", err)
	}

	name := submatches(`(?m)^(weir-pod\S*-weir)$`, command(t, "podman", "ps", "--format", "{{.Names}}"))
	if len(name) != 1 {
		t.Fatalf("containers %q, want one", name)
	}
	out := command(t, "podman", "exec", name[0], "/bin/weir", "status")
	if !strings.Contains(out, "ready") || !strings.Contains(out, "memory") {
		t.Errorf("weir status in the pod prints\n%s", out)
	}

	// As docs/start/kubernetes.md edits it.
	m := regexp.MustCompile(`sed 's/([^/]+)/([^/]+)/'`).FindStringSubmatch(read(t, "../../docs/start/kubernetes.md"))
	if m == nil || strings.Count(rules.Data["clients.yaml"], m[1]) != 1 {
		t.Fatalf("the page edits %q, the rules are\n%s", m, rules.Data["clients.yaml"])
	}
	rules.Data["clients.yaml"] = strings.Replace(rules.Data["clients.yaml"], m[1], m[2], 1)
	mount.write(t, rules.Data)
	edited := time.Now()
	await(t, func() error {
		if err := answers(t, front+"/", 200); err != nil {
			return err
		}
		// Envoy lets a request pass, too, if Weir does not answer in time.
		if _, body := get(t, "http://"+chartWeir+":8080/rules"); !strings.Contains(body, `"requests_per_unit": 100,`) &&
			!strings.Contains(body, `"requests_per_unit":100,`) {
			return fmt.Errorf("Weir does not run the edited rules:\n%.1000s", body)
		}
		return nil
	})
	t.Logf("an edit of the ConfigMap holds %s after the kubelet has brought it", time.Since(edited).Round(time.Millisecond))

	// Wrong rules change nothing.
	rules.Data["clients.yaml"] = strings.Replace(rules.Data["clients.yaml"], "unit: second", "unit: secnod", 1)
	mount.write(t, rules.Data)
	await(t, func() error {
		_, body := get(t, "http://"+chartWeir+":8080/rules")
		if !strings.Contains(body, "secnod") {
			return fmt.Errorf("GET /rules does not show the error:\n%.500s", body)
		}
		return nil
	})
	if err := answers(t, front+"/", 200); err != nil {
		t.Errorf("with wrong rules: %v", err)
	}
}

// answers returns nil if the URL answers with the status.
func answers(t *testing.T, url string, want int) error {
	t.Helper()
	status, body, err := tryGet(t, url)
	if err == nil && status != want {
		err = fmt.Errorf("%s: status %d, want %d: %.300s", url, status, want, body)
	}
	return err
}

// requests returns how many requests of the domain shop Weir has answered with the code.
func requests(t *testing.T, code string) float64 {
	t.Helper()
	_, body := get(t, "http://"+chartWeir+":8080/metrics")
	found := submatches(`(?m)^weir_requests_total\{code="`+code+`",domain="shop"\} (\S+)$`, body)
	if len(found) != 1 {
		t.Fatalf("%d series of code %s:\n%s", len(found), code, strings.Join(submatches("(?m)^(weir_requests_total.*)$", body), "\n"))
	}
	n, err := strconv.ParseFloat(found[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// mountedConfigMap is a directory in the form in which a kubelet mounts a ConfigMap: files are links into the directory
// ..data, which is a link to the latest version and changes atomically.
type mountedConfigMap struct {
	dir     string
	version int
}

// write writes a new version.
func (m *mountedConfigMap) write(t *testing.T, data map[string]string) {
	t.Helper()
	old := fmt.Sprintf("..version_%d", m.version)
	m.version++
	version := fmt.Sprintf("..version_%d", m.version)
	err := os.MkdirAll(filepath.Join(m.dir, version), 0o755)
	for name, text := range data {
		err = errors.Join(err, os.WriteFile(filepath.Join(m.dir, version, name), []byte(text), 0o644))
	}
	next := filepath.Join(m.dir, "..data_tmp")
	err = errors.Join(err, os.Symlink(version, next), os.Rename(next, filepath.Join(m.dir, "..data")))
	for name := range data {
		link := filepath.Join(m.dir, name)
		if _, e := os.Lstat(link); e != nil {
			err = errors.Join(err, os.Symlink(filepath.Join("..data", name), link))
		}
	}
	err = errors.Join(err, os.RemoveAll(filepath.Join(m.dir, old)))
	if err != nil {
		t.Fatal(err)
	}
}
