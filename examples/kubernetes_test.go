package examples

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
)

type object = map[string]any

// at is what lies in the manifest below the keys and indices of the path.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for i, step := range path {
		ok := false
		switch step := step.(type) {
		case string:
			var m object
			if m, ok = v.(object); ok {
				v, ok = m[step]
			}
		case int:
			var list []any
			if list, ok = v.([]any); ok && step < len(list) {
				v = list[step]
			}
		}
		if !ok {
			t.Fatalf("kubernetes.yaml: nothing at %v", path[:i+1])
		}
	}
	return v
}

// manifest is the objects of kubernetes.yaml by kind.
func manifest(t *testing.T) map[string]object {
	t.Helper()
	text, err := os.ReadFile("kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]object{}
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o object
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		kind, _ := o["kind"].(string)
		if kinds[kind] != nil {
			t.Fatalf("kubernetes.yaml has two objects of kind %q", kind)
		}
		kinds[kind] = o
	}
	if got := slices.Sorted(maps.Keys(kinds)); !slices.Equal(got, []string{"ConfigMap", "Deployment", "Service"}) {
		t.Fatalf("kubernetes.yaml has objects of the kinds %v: a Secret does not belong into a file", got)
	}
	return kinds
}

func TestKubernetesRules(t *testing.T) {
	data, _ := at(t, manifest(t)["ConfigMap"], "data").(object)
	var files []rulefile.File
	for _, name := range slices.Sorted(maps.Keys(data)) {
		text, _ := data[name].(string)
		files = append(files, rulefile.File{Name: name, Data: []byte(text)})
	}
	set, err := rulefile.Compile(files)
	if err != nil {
		t.Fatal(err)
	}
	address := descriptors.Entry{Key: "remote_address", Value: "192.0.2.7"}
	login := []descriptors.Entry{{Key: "path", Value: "/login"}, address}
	for _, entries := range [][]descriptors.Entry{{address}, login} { // as envoy.yaml asks
		if rule := set.Domain("shop").Match(entries); rule == nil || len(rule.Limits) != 1 {
			t.Errorf("%v: rule %v, want one with a limit", entries, rule)
		}
	}
	if got := set.Domain("shop").Match(login).Limits[0].OnStoreFailure; got != descriptors.Deny {
		t.Errorf("without its store a login is decided by %v, want deny", got)
	}
}

// The objects fit each other and what the binary listens to.
func TestKubernetesFits(t *testing.T) {
	m := manifest(t)
	deployment, service := m["Deployment"], m["Service"]
	pod := at(t, deployment, "spec", "template", "spec")
	weir := at(t, pod, "containers", 0)
	labels := at(t, deployment, "spec", "template", "metadata", "labels")
	args, _ := at(t, weir, "args").([]any)
	for _, tt := range []struct {
		what      string
		got, want any
	}{
		{"the Deployment's selector", at(t, deployment, "spec", "selector", "matchLabels"), labels},
		{"the Service's selector", at(t, service, "spec", "selector"), labels},
		{
			"the Service's ports, of which HTTP is none", at(t, service, "spec", "ports"),
			[]any{object{"name": "grpc", "port": 8081, "targetPort": "grpc"}},
		},
		{
			"the container's ports", at(t, weir, "ports"),
			[]any{object{"name": "grpc", "containerPort": 8081}, object{"name": "http", "containerPort": 8080}},
		},
		{"the mounted ConfigMap", at(t, pod, "volumes", 0, "configMap", "name"), at(t, m["ConfigMap"], "metadata", "name")},
		{
			"the mount, which must be of the directory", at(t, weir, "volumeMounts"),
			[]any{
				object{"name": at(t, pod, "volumes", 0, "name"), "mountPath": "/etc/weir/rules", "readOnly": true},
				object{"name": at(t, pod, "volumes", 1, "name"), "mountPath": "/etc/weir/token", "readOnly": true},
			},
		},
		{"the token's Secret", at(t, pod, "volumes", 1, "secret", "secretName"), "weir-token"},
		{"the token's flag", slices.Contains(args, any("--http-token-file=/etc/weir/token/token")), true},
		{"liveness", at(t, weir, "livenessProbe", "httpGet"), object{"path": "/healthz", "port": "http"}},
		{
			"readiness", at(t, weir, "readinessProbe", "grpc"),
			object{"port": 8081, "service": pb.RateLimitService_ServiceDesc.ServiceName},
		},
		{"running as root", at(t, pod, "securityContext", "runAsNonRoot"), true},
		{"what the container may", at(t, weir, "securityContext"), object{
			"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": object{"drop": []any{"ALL"}},
		}},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.what, diff)
		}
	}
}
