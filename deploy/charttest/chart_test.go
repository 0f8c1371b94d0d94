package charttest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

// chartDir is the chart.
const chartDir = "../helm/weir"

// object is a Kubernetes object, or a part of one.
type object = map[string]any

// load reads the chart.
func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render returns what helm template prints for a release called weir, without the notes.
func render(t *testing.T, release, values string) (text, notes string, err error) {
	t.Helper()
	c := load(t)
	own, err := common.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	options := common.ReleaseOptions{Name: release, Namespace: "default", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(c, own, options, common.DefaultCapabilities)
	if err != nil {
		return "", "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return "", "", err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch {
		case strings.HasSuffix(name, "NOTES.txt"):
			notes = files[name]
		case strings.TrimSpace(files[name]) != "":
			fmt.Fprintf(&b, "---\n# Source: %s\n%s\n", name, strings.TrimSpace(files[name]))
		}
	}
	return b.String(), notes, nil
}

// parse returns the objects of manifests by kind and name. It fails the test if a key or an object occurs twice.
func parse(t *testing.T, text string) map[string]object {
	t.Helper()
	objects := map[string]object{}
	for decoder := yaml.NewDecoder(bytes.NewReader([]byte(text))); ; {
		var o object
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, numbered(text))
		}
		if o == nil {
			continue
		}
		metadata, _ := o["metadata"].(object)
		name := fmt.Sprintf("%v/%v", o["kind"], metadata["name"])
		if objects[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		objects[name] = o
	}
}

func numbered(text string) string {
	var b strings.Builder
	for i, line := range strings.Split(text, "\n") {
		fmt.Fprintf(&b, "%4d %s\n", i+1, line)
	}
	return b.String()
}

// differences says where got has not what want asks for: the keys of maps that want has, lists as a whole, and no key
// where want has null.
func differences(path string, want, got any) []string {
	wantMap, ok := want.(object)
	if !ok {
		if !equal(want, got) {
			return []string{fmt.Sprintf("%s is %v, want %v", path, got, want)}
		}
		return nil
	}
	gotMap, ok := got.(object)
	if !ok {
		return []string{fmt.Sprintf("%s is %v, want %v", path, got, want)}
	}
	var found []string
	for _, key := range slices.Sorted(maps.Keys(wantMap)) {
		value, ok := gotMap[key]
		switch {
		case wantMap[key] == nil && ok:
			found = append(found, fmt.Sprintf("%s.%s is %v, want none", path, key, value))
		case wantMap[key] != nil && !ok:
			found = append(found, fmt.Sprintf("%s has no %s", path, key))
		case ok:
			found = append(found, differences(path+"."+key, wantMap[key], value)...)
		}
	}
	return found
}

// equal compares two values of YAML.
func equal(a, b any) bool {
	x, err := yaml.Marshal(a)
	y, err2 := yaml.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}
