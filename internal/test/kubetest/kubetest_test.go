package kubetest

import (
	"strings"
	"testing"
)

const configMap = `
apiVersion: v1
kind: ConfigMap
metadata: {name: weir-rules, namespace: default}
data: {}
`

// Two clusters run at once, and neither has the other's objects.
func TestClustersAreApart(t *testing.T) {
	one, two := Start(t), Start(t)
	one.Apply(t, configMap)
	var object struct {
		Metadata struct{ UID string }
	}
	if one.Get(t, &object, "configmap", "weir-rules"); object.Metadata.UID == "" {
		t.Error("the stored object has no UID")
	}
	if out, err := two.Try("", "get", "configmap", "weir-rules"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("the other cluster has it, too: %s, %v", out, err)
	}
	if out, err := two.DryRun(configMap); err != nil || !strings.Contains(out, "weir-rules created (server dry run)") {
		t.Errorf("dry run: %s, %v", out, err)
	}
	if _, err := two.DryRun(configMap + "dat: {}\n"); err == nil || !strings.Contains(err.Error(), `unknown field "dat"`) {
		t.Errorf("a misspelled field: error %v", err)
	}
}
