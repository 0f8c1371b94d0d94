package charttest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// testCase is a file of testdata/cases: values, and what the objects must have that come of them. Maps may have more
// than what is asked for, and null says that something must be absent.
type testCase struct {
	Name         string            `yaml:"-"`
	Values       yaml.Node         `yaml:"values"`
	Want         map[string]object `yaml:"want"`      // by kind and name
	Without      []string          `yaml:"without"`   // objects that must not be there
	Pod          object            `yaml:"pod"`       // of the pod's spec
	Container    object            `yaml:"container"` // of Weir's container
	Args         []string          `yaml:"args"`      // arguments that Weir must have
	WithoutArgs  []string          `yaml:"withoutArgs"`
	Text         []string          `yaml:"text"`  // of the manifests
	Notes        []string          `yaml:"notes"` // of what is printed after an installation
	WithoutNotes []string          `yaml:"withoutNotes"`
}

// values is the case's values file.
func (c testCase) values(t *testing.T) string {
	t.Helper()
	text, err := yaml.Marshal(&c.Values)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// cases are the files of testdata/cases, and the chart without values.
func cases(t *testing.T) []testCase {
	t.Helper()
	paths, err := filepath.Glob("testdata/cases/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	all := []testCase{{Name: "defaults", Notes: []string{"two example files", "one replica", "there is no token"}}}
	if err := all[0].Values.Encode(object{}); err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		c := testCase{Name: strings.TrimSuffix(filepath.Base(path), ".yaml")}
		decoder := yaml.NewDecoder(strings.NewReader(string(text)))
		decoder.KnownFields(true)
		if err := decoder.Decode(&c); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, c)
	}
	return all
}

// workload returns the Deployment or DaemonSet of the objects.
func workload(t *testing.T, objects map[string]object) object {
	t.Helper()
	for name, o := range objects {
		if strings.HasPrefix(name, "Deployment/") || strings.HasPrefix(name, "DaemonSet/") {
			return o
		}
	}
	t.Fatal("there is no Deployment and no DaemonSet")
	return nil
}

// pod returns the workload's pod, and Weir's container in it.
func pod(t *testing.T, objects map[string]object) (spec, container object) {
	t.Helper()
	spec, _ = podtest.At(workload(t, objects), "spec", "template", "spec").(object)
	container, _ = podtest.At(spec, "containers", 0).(object)
	if container["name"] != "weir" {
		t.Fatalf("the first container is %v, want weir", container["name"])
	}
	return spec, container
}

// texts are the strings of a list.
func texts(v any) []string {
	list, _ := v.([]any)
	var found []string
	for _, item := range list {
		text, _ := item.(string)
		found = append(found, text)
	}
	return found
}

// Each option makes the objects and arguments that its case asks for, no field that its type has not, and arguments
// that Weir understands.
func TestOptions(t *testing.T) {
	for _, c := range cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			text, notes, err := render(t, "weir", c.values(t))
			if err != nil {
				t.Fatal(err)
			}
			objects := parse(t, text)
			spec, container := pod(t, objects)
			found := append(differences("pod", c.Pod, spec), differences("container", c.Container, container)...)
			found = append(append(found, unknownFields(t, objects)...), argumentProblems(t, spec, container)...)
			for name, want := range c.Want {
				if objects[name] == nil {
					found = append(found, "there is no "+name)
					continue
				}
				found = append(found, differences(name, want, objects[name])...)
			}
			for _, name := range c.Without {
				if objects[name] != nil {
					found = append(found, "there is "+name)
				}
			}
			args := texts(container["args"])
			for _, arg := range c.Args {
				if !slices.Contains(args, arg) {
					found = append(found, "no argument "+arg)
				}
			}
			for _, flag := range c.WithoutArgs {
				if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, flag) }) {
					found = append(found, "an argument "+flag)
				}
			}
			found = append(found, missing("the manifests", text, c.Text)...)
			found = append(found, missing("the notes", notes, c.Notes)...)
			for _, part := range c.WithoutNotes {
				if strings.Contains(notes, part) {
					found = append(found, "the notes have "+part)
				}
			}
			if len(found) > 0 {
				t.Errorf("%s\narguments %q\nnotes:\n%s\nmanifests:\n%s", strings.Join(found, "\n"), args, notes, numbered(text))
			}
		})
	}
}

func missing(where, text string, parts []string) []string {
	var found []string
	for _, part := range parts {
		if !strings.Contains(text, part) {
			found = append(found, where+" have no "+part)
		}
	}
	return found
}

// Two releases in one namespace share no name and select none of each other's pods.
func TestReleasesAreApart(t *testing.T) {
	const values = "{metrics: {podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}," +
		" networkPolicy: {enabled: true}, httpService: {enabled: true}}"
	one, _, err := render(t, "edge", values)
	if err != nil {
		t.Fatal(err)
	}
	two, _, err := render(t, "shop", values)
	if err != nil {
		t.Fatal(err)
	}
	objects, others := parse(t, one), parse(t, two)
	if len(objects) < 9 {
		t.Errorf("%d objects", len(objects))
	}
	for name := range objects {
		if others[name] != nil {
			t.Errorf("both releases have %s", name)
		}
	}
	selector := podtest.At(workload(t, objects), "spec", "selector", "matchLabels")
	if want := (object{"app.kubernetes.io/name": "weir", "app.kubernetes.io/instance": "edge"}); !equal(selector, want) {
		t.Errorf("selector %v, want %v", selector, want)
	}
	for _, service := range []string{"Service/edge-weir", "Service/edge-weir-http"} {
		if got := podtest.At(objects[service], "spec", "selector"); !equal(got, selector) {
			t.Errorf("%s selects %v, want %v", service, got, selector)
		}
	}
}
