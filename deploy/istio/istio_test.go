// Package istio holds the files to run Weir with Istio, and a quick test that they fit together. e2e/istio runs them.
package istio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/istio"
	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

type object = map[string]any

// list is the value under keys and indices, as a list.
func list(v any, path ...any) []any {
	l, _ := podtest.At(v, path...).([]any)
	return l
}

// generated is the name of what weir generate istio makes of limits.yaml.
const generated = "limits.yaml"

// load returns the objects of a file.
func load(t *testing.T, file string) (all []object) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := []istio.File{{Name: file, Data: data}}
	if file == generated {
		out, err := istio.Generate(files, istio.Options{})
		if err != nil {
			t.Fatal(err)
		}
		files = out.Files
	}
	for _, f := range files {
		var err error
		for decoder := yaml.NewDecoder(bytes.NewReader(f.Data)); err == nil; {
			var o object
			if err = decoder.Decode(&o); err == nil {
				all = append(all, o)
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Fatalf("%s: %v", f.Name, err)
		}
	}
	return all
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
	for _, file := range []string{"weir.yaml", generated, "socket/shop.yaml"} {
		for _, config := range kind(load(t, file), "ConfigMap") {
			var files []rulefile.File
			for name, text := range config["data"].(object) { //nolint:errcheck,forcetypeassert // a ConfigMap has data
				files = append(files, rulefile.File{Name: name, Data: fmt.Append(nil, text)})
			}
			if set, err := rulefile.Compile(files); set == nil || err != nil || len(files) == 0 {
				t.Errorf("%s: %d files with rules: %v", file, len(files), err)
			}
		}
	}
}

// TestFiltersAsk: the filters name the domain of the rules, and a cluster that there is.
func TestFiltersAsk(t *testing.T) {
	weir := load(t, "weir.yaml")
	service := kind(weir, "Service")[0]
	port := podtest.At(service, "spec", "ports", 0)
	if podtest.At(service, "spec", "clusterIP") != nil || podtest.At(port, "appProtocol") != "grpc" {
		t.Error("sidecars reach a Service that is not headless, and speak HTTP/2 if its first port's appProtocol is grpc")
	}
	host := fmt.Sprintf("%v.%v.svc.cluster.local", podtest.At(service, "metadata", "name"),
		podtest.At(service, "metadata", "namespace"))
	ofService := fmt.Sprintf("outbound|%v||%s", podtest.At(port, "port"), host)
	rules := podtest.At(load(t, generated)[0], "metadata", "name")
	volume := list(kind(weir, "Deployment")[0], "spec", "template", "spec", "volumes", 0, "projected", "sources")
	if name := podtest.At(volume, 1, "configMap", "name"); name != rules {
		t.Errorf("weir.yaml mounts the ConfigMap %v, want %v", name, rules)
	}
	filters := append(kind(load(t, generated), "EnvoyFilter"), load(t, "socket/envoyfilter.yaml")...)
	if len(filters) != 3 {
		t.Errorf("there are %d EnvoyFilters, want those of the gateway, the service and the socket", len(filters))
	}
	for _, filter := range filters {
		patches := list(filter, "spec", "configPatches")
		want := []any{"istio", "0.02s", ofService, "weir-system/" + host}
		if podtest.At(patches[0], "applyTo") == "CLUSTER" { // of the socket
			want = []any{"shop", "0.02s", podtest.At(patches[0], "patch", "value", "name"), nil}
			patches = patches[1:]
		}
		config := podtest.At(patches[0], "patch", "value", "typed_config")
		got := []any{
			podtest.At(config, "domain"), podtest.At(config, "timeout"),
			podtest.At(config, "rate_limit_service", "grpc_service", "envoy_grpc", "cluster_name"),
			podtest.At(filter, "metadata", "annotations", "envoyfilter.istio.io/referenced-services"),
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v: domain, timeout, cluster, service %v, want %v", podtest.At(filter, "metadata", "name"), got, want)
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
