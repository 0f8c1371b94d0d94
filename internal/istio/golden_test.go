package istio

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/rate_limit_descriptors/expr/v3" // in an Any

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// TestGolden generates the output of each directory in testdata, and compares it with the files output, report and
// refused. Envoy's messages and Weir's rules must accept the output, and the order of files must not matter.
func TestGolden(t *testing.T) {
	dirs, err := filepath.Glob("testdata/*")
	if err != nil || len(dirs) == 0 {
		t.Fatal("no cases", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			options := Options{Version: "v1"}
			var files []File
			for _, path := range must(filepath.Glob(dir + "/*.yaml"))(t) {
				data := must(os.ReadFile(path))(t)
				if filepath.Base(path) == "options.yaml" {
					if err := yaml.Unmarshal(data, &options); err != nil {
						t.Fatal(err)
					}
					continue
				}
				files = append(files, File{filepath.Base(path), data})
			}
			golden := generate(files, options)
			slices.Reverse(files)
			if diff := cmp.Diff(golden, generate(files, options)); diff != "" {
				t.Errorf("the order of files changes the output:\n%s", diff)
			}
			for name, got := range golden {
				path := filepath.Join(dir, name)
				if *casetest.Update {
					if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, _ := os.ReadFile(path)
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("%s: -want +got (-update writes it)\n%s", path, diff)
				}
			}
			for object := range strings.SplitSeq(golden["output"], "---\n") {
				checkObject(t, object)
			}
		})
	}
}

// An object that Kubernetes would not store is refused.
func TestTooLarge(t *testing.T) {
	var limits strings.Builder
	for i := range 120 {
		fmt.Fprintf(&limits, "  - {name: l%d, allow: 1 per day, paths: [/%09000d]}\n", i, i)
	}
	_, err := Generate([]File{{"f", []byte("service: shop/shop\nlimits:\n" + limits.String())}}, Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "f:1:1: envoyfilter-shop_shop.yaml would have 11") {
		t.Errorf("%v, want that the EnvoyFilter is too large", err)
	}
}

// Of many errors, the first ones are listed, and all are counted.
func TestManyErrors(t *testing.T) {
	limits := strings.Repeat("  - {name: Login, allow: 1 per day}\n", maxDescriptors)
	_, err := Generate([]File{{"f", []byte("service: shop/shop\nlimits:\n" + limits)}}, Options{})
	errs := descriptors.Errors{}
	if !errors.As(err, &errs) || len(errs) != maxErrors+1 || errs.Count() < maxDescriptors {
		t.Errorf("%d errors of %d, want %d of %d or more: %v", len(errs), errs.Count(), maxErrors+1, maxDescriptors, err)
	}
}

// must returns the value, and fails the test if there is an error.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// generate returns the contents of golden files by name. A case has output and report, or refused.
func generate(files []File, options Options) map[string]string {
	out, err := Generate(files, options)
	if err != nil {
		return map[string]string{"refused": err.Error() + "\n"}
	}
	var all []string
	for _, f := range out.Files {
		all = append(all, "# "+f.Name+"\n"+string(f.Data))
	}
	return map[string]string{
		"output": strings.Join(all, "---\n"), "report": out.Report.Error() + "\n",
	}
}

// checkObject checks rules with Weir's compiler, and patches with Envoy's messages, which refuse unknown fields.
func checkObject(t *testing.T, text string) {
	t.Helper()
	var object struct {
		Data map[string]string
		Spec struct {
			ConfigPatches []struct {
				ApplyTo string `yaml:"applyTo"`
				Patch   struct{ Value any }
			} `yaml:"configPatches"`
		}
	}
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	for name, rules := range object.Data {
		set, err := rulefile.Compile([]rulefile.File{{Name: name, Data: []byte(rules)}})
		if err != nil || len(set.Warnings()) > 0 {
			t.Errorf("rules: %v, warnings: %v", err, set.Warnings())
		}
	}
	for _, p := range object.Spec.ConfigPatches {
		value := must(json.Marshal(p.Patch.Value))(t)
		var route routev3.RouteConfiguration // and routes and virtual hosts have the same field
		var filter corev3.TypedExtensionConfig
		if p.ApplyTo == "HTTP_FILTER" {
			unmarshal(t, value, &filter)
			var config ratelimitv3.RateLimit
			if err := filter.GetTypedConfig().UnmarshalTo(&config); err != nil || config.ValidateAll() != nil {
				t.Error(err, config.ValidateAll())
			}
			continue
		}
		unmarshal(t, value, &route)
		var config ratelimitv3.RateLimitPerRoute
		err := route.GetTypedPerFilterConfig()["weir.ratelimit"].UnmarshalTo(&config)
		if err != nil || config.ValidateAll() != nil {
			t.Error(err, config.ValidateAll())
		}
	}
}

func unmarshal(t *testing.T, value []byte, to proto.Message) {
	t.Helper()
	if err := protojson.Unmarshal(bytes.TrimSpace(value), to); err != nil {
		t.Errorf("%v\n%s", err, value)
	}
}
