package charttest

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// kustomizations builds each kustomization of deploy/ as kubectl kustomize does.
func kustomizations(t *testing.T) map[string]string {
	t.Helper()
	built := map[string]string{}
	for _, dir := range []string{"kubernetes", "kustomize/base", "kustomize/overlays/redis", "kustomize/overlays/istio"} {
		resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../"+dir)
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		text, err := resources.AsYaml()
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		built[dir] = string(text)
	}
	return built
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestKustomizations(t *testing.T) {
	built := kustomizations(t)
	base := parse(t, built["kustomize/base"])
	// The name has no hash: with one, each edit of the rules would start all pods again.
	if rules := base["ConfigMap/weir-rules"]; rules == nil {
		t.Errorf("the base has no ConfigMap weir-rules:\n%s", built["kustomize/base"])
	} else if text, _ := podtest.At(rules, "data", "shop.yaml").(string); !strings.Contains(text, "domain: shop") ||
		podtest.At(rules, "data", "clients.yaml") != nil {
		t.Errorf("the base's rules are not those of its folder:\n%v", rules)
	}
	_, container := pod(t, base)
	if !slices.Contains(texts(container["args"]), "--rules=/etc/weir/rules") {
		t.Errorf("arguments %v", container["args"])
	}

	redis := parse(t, built["kustomize/overlays/redis"])
	if got := podtest.At(redis["Deployment/weir"], "spec", "replicas"); got != 2 {
		t.Errorf("with Redis there are %v replicas, want 2", got)
	}
	_, container = pod(t, map[string]object{"Deployment/weir": redis["Deployment/weir"]})
	secret, _ := podtest.At(container, "env", 0, "valueFrom", "secretKeyRef", "name").(string)
	if redis["Secret/"+secret] == nil {
		t.Errorf("the URL comes from the Secret %q, which is not there", secret)
	}
	if problems := problemsOf(t, container); problems != "" {
		t.Error(problems)
	}
	if redis["Service/redis"] == nil || redis["Deployment/redis"] == nil {
		t.Error("there is no Redis")
	}

	istio := parse(t, built["kustomize/overlays/istio"])
	labels := podtest.At(istio["Deployment/weir"], "spec", "template", "metadata", "labels")
	if got := podtest.At(labels, "sidecar.istio.io/inject"); got != "true" {
		t.Errorf("Istio's label is %v", got)
	}
	if got := podtest.At(istio["Deployment/weir"], "spec", "selector", "matchLabels", "sidecar.istio.io/inject"); got != nil {
		t.Error("Istio's label is in the selector, which cannot change")
	}
	// Of a headless Service a sidecar makes a cluster that the rate limit filter cannot ask.
	if got := podtest.At(istio["Service/weir"], "spec", "clusterIP"); got != nil {
		t.Errorf("the Service's clusterIP is %v, want none", got)
	}
}
