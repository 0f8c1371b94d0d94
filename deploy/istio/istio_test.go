// Package istio holds the files to run Weir with Istio, and a quick test that they fit together. e2e/istio runs them.
package istio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

type object = map[string]any

// list is the value under keys and indices, as a list.
func list(v any, path ...any) []any {
	l, _ := podtest.At(v, path...).([]any)
	return l
}

// child is the value under keys and indices, as an object.
func child(v any, path ...any) object {
	o, _ := podtest.At(v, path...).(object)
	return o
}

// load returns the objects of a file.
func load(t *testing.T, file string) (all []object) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	for decoder := yaml.NewDecoder(f); ; {
		var o object
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, o)
	}
}

// kind returns the objects of a kind.
func kind(objects []object, kind string) (some []object) {
	for _, o := range objects {
		if o["kind"] == kind {
			some = append(some, o)
		}
	}
	return some
}

func TestRulesLoad(t *testing.T) {
	for _, file := range []string{"weir.yaml", "socket/shop.yaml"} {
		for _, config := range kind(load(t, file), "ConfigMap") {
			var files []rulefile.File
			for name, text := range child(config, "data") {
				files = append(files, rulefile.File{Name: name, Data: fmt.Append(nil, text)})
			}
			set, err := rulefile.Compile(files)
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			if set == nil || len(files) == 0 {
				t.Errorf("%s has no rules", file)
			}
		}
	}
}

// TestFiltersAsk: the filters name the domain of the rules, and a cluster that there is.
func TestFiltersAsk(t *testing.T) {
	service := kind(load(t, "weir.yaml"), "Service")[0]
	if podtest.At(service, "spec", "clusterIP") != nil {
		t.Error("the Service is headless: sidecars reach no headless Service by its cluster")
	}
	port := podtest.At(service, "spec", "ports", 0)
	if podtest.At(port, "appProtocol") != "grpc" {
		t.Errorf("the first port's protocol is %v: Envoy would not speak HTTP/2", podtest.At(port, "appProtocol"))
	}
	host := fmt.Sprintf("%v.%v.svc.cluster.local", podtest.At(service, "metadata", "name"), podtest.At(service, "metadata", "namespace"))
	ofService := fmt.Sprintf("outbound|%v||%s", podtest.At(port, "port"), host)
	for file, cluster := range map[string]string{
		"gateway.yaml": ofService, "sidecar.yaml": ofService, "socket/envoyfilter.yaml": "weir",
	} {
		filters := 0
		for _, patch := range list(load(t, file)[0], "spec", "configPatches") {
			if podtest.At(patch, "applyTo") == "CLUSTER" && podtest.At(patch, "patch", "value", "name") != cluster {
				t.Errorf("%s adds the cluster %v, want %s", file, podtest.At(patch, "patch", "value", "name"), cluster)
			}
			if podtest.At(patch, "applyTo") != "HTTP_FILTER" {
				continue
			}
			filters++
			config := podtest.At(patch, "patch", "value", "typed_config")
			if podtest.At(config, "domain") != "shop" || podtest.At(config, "timeout") != "0.02s" {
				t.Errorf("%s: domain %v, timeout %v", file, podtest.At(config, "domain"), podtest.At(config, "timeout"))
			}
			if got := podtest.At(config, "rate_limit_service", "grpc_service", "envoy_grpc", "cluster_name"); got != cluster {
				t.Errorf("%s asks the cluster %v, want %s", file, got, cluster)
			}
		}
		if filters != 1 {
			t.Errorf("%s has %d filters, want 1", file, filters)
		}
		references := podtest.At(load(t, file)[0], "metadata", "annotations", "envoyfilter.istio.io/referenced-services")
		if cluster == ofService && references != "weir-system/"+host {
			t.Errorf("%s references the service %v", file, references)
		}
	}
}

// TestTemplateIsTheContainer: the injection template adds the container of socket/shop.yaml.
func TestTemplateIsTheContainer(t *testing.T) {
	template, _ := podtest.At(load(t, "socket/template.yaml")[0], "sidecarInjectorWebhook", "templates", "weir").(string)
	var kept []string
	for line := range strings.Lines(template) {
		if !strings.Contains(line, "{{-") && strings.TrimSpace(line) != "containers:" {
			kept = append(kept, line)
		}
	}
	var pod object
	if err := yaml.Unmarshal([]byte(strings.Join(kept, "")), &pod); err != nil {
		t.Fatal(err)
	}
	encode := func(v any) string {
		text, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), "name: weir-rules", "name: rules") // the volume
	}
	shop := kind(load(t, "socket/shop.yaml"), "Deployment")[0]
	got := encode(podtest.At(pod, "spec", "initContainers", 0))
	if want := encode(podtest.At(shop, "spec", "template", "spec", "initContainers", 0)); got != want {
		t.Errorf("the template's container:\n%s\nthe one of socket/shop.yaml:\n%s", got, want)
	}
}
