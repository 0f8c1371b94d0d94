package charttest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// operator is the Prometheus operator, whose CRDs are read.
const operator = "github.com/prometheus-operator/prometheus-operator@v0.85.0"

// A real API server accepts, strictly, what each option makes, the plain manifests and the kustomizations. It stores
// the defaults, too: a second look finds what was asked for.
func TestAPIServer(t *testing.T) {
	c := podtest.StartCluster(t)
	out, err := exec.Command("go", "mod", "download", "-json", operator).Output()
	if err != nil {
		t.Fatalf("download %s: %v", operator, err)
	}
	_, dir, _ := strings.Cut(string(out), `"Dir": "`)
	dir, _, _ = strings.Cut(dir, `"`)
	var crds []string
	for _, name := range []string{"podmonitors", "servicemonitors", "prometheusrules"} {
		crds = append(crds, filepath.Join(dir, "example/prometheus-operator-crd/monitoring.coreos.com_"+name+".yaml"))
	}
	c.CRDs(t, crds...)

	const wrong = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {porst: []}\n"
	if _, err := c.DryRun(wrong); err == nil || !strings.Contains(err.Error(), `unknown field "spec.porst"`) {
		t.Errorf("a misspelled field: error %v", err)
	}
	dryRun(t, c, manifests(t))
	for _, name := range []string{"weir.yaml", "weir-redis.yaml", "envoy.yaml"} {
		if _, err := c.Try("", "apply", "--dry-run=server", "--validate=strict", "-f", "../kubernetes/"+name); err != nil {
			t.Error(err)
		}
	}
	installs(t, c)
}

// manifests returns what each option of the chart makes, and each kustomization, by name.
func manifests(t *testing.T) map[string]string {
	t.Helper()
	all := kustomizations(t)
	for _, tt := range cases(t) {
		text, _, err := render(t, "weir", tt.values(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, taken := all[tt.Name]; taken {
			t.Fatalf("two manifests are called %s", tt.Name)
		}
		all[tt.Name] = text
	}
	return all
}

// dryRun checks that the server accepts every object of the manifests. It sends all at once, since each call of kubectl
// costs much, and each by itself only to say which is refused.
func dryRun(t *testing.T, c *podtest.Cluster, all map[string]string) {
	t.Helper()
	var texts []string
	sum := 0
	for _, text := range all {
		texts = append(texts, text)
		sum += len(parse(t, text))
	}
	if out, err := c.DryRun(strings.Join(texts, "\n---\n")); err == nil && strings.Count(out, "(server dry run)") == sum {
		return
	}
	for name, text := range all {
		out, err := c.DryRun(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if n, want := strings.Count(out, "(server dry run)"), len(parse(t, text)); n != want {
			t.Errorf("%s: the server accepted %d objects, want %d:\n%s", name, n, want, out)
		}
	}
	if !t.Failed() {
		t.Error("the server accepts each manifest, and not all of them at once")
	}
}

// installs applies the chart for real, in the namespace of the strictest pod security standard, and again after a
// change of the rules, which must leave the pods alone.
func installs(t *testing.T, c *podtest.Cluster) {
	t.Helper()
	c.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: limits, labels: "+
		"{pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/warn: restricted}}}")
	template := func(rate string) object {
		text, _, err := render(t, "weir", "{rules: {files: {shop.yaml: '"+rate+"'}}}")
		if err != nil {
			t.Fatal(err)
		}
		text = strings.ReplaceAll(text, "namespace: default", "namespace: limits")
		c.Apply(t, text)
		var deployment object
		c.Get(t, &deployment, "--namespace", "limits", "deployment", "weir")
		pod, _ := podtest.At(deployment, "spec", "template").(object)
		return pod
	}
	before, after := template("domain: shop"), template("domain: shop # changed")
	if !equal(before, after) {
		t.Errorf("a change of the rules changes the pods, so that they start again:\n%v\n%v", before, after)
	}
	var rules object
	c.Get(t, &rules, "--namespace", "limits", "configmap", "weir-rules")
	if got := podtest.At(rules, "data", "shop.yaml"); got != "domain: shop # changed\n" {
		t.Errorf("the rules are %q", got)
	}
	// A Deployment is accepted whatever its pods want: only a pod itself shows what the namespace allows.
	spec, _ := before["spec"].(object)
	metadata, _ := before["metadata"].(object)
	metadata["name"], metadata["namespace"] = "weir-0", "limits"
	text := marshal(t, object{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
	if _, err := c.DryRun(text); err != nil {
		t.Errorf("a pod in a namespace of the restricted standard: %v", err)
	}
	container, _ := podtest.At(spec, "containers", 0).(object)
	delete(container, "securityContext")
	text = marshal(t, object{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
	if _, err := c.DryRun(text); err == nil || !strings.Contains(err.Error(), "restricted") {
		t.Errorf("a pod without a securityContext: error %v", err)
	}
}
