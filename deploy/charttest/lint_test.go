package charttest

import (
	"fmt"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	corev1 "k8s.io/api/core/v1"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// helm lint has nothing to say about any option.
func TestLint(t *testing.T) {
	for _, c := range cases(t) {
		values, err := common.ReadValues([]byte(c.values(t)))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range lint.RunAll(chartDir, values, "default").Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", c.Name, m)
			}
		}
	}
}

// kinds are the types of Kubernetes' own objects.
var kinds = map[string]func() any{
	"ConfigMap":               func() any { return &corev1.ConfigMap{} },
	"Service":                 func() any { return &corev1.Service{} },
	"ServiceAccount":          func() any { return &corev1.ServiceAccount{} },
	"Deployment":              func() any { return &appsv1.Deployment{} },
	"DaemonSet":               func() any { return &appsv1.DaemonSet{} },
	"HorizontalPodAutoscaler": func() any { return &autoscalingv2.HorizontalPodAutoscaler{} },
	"PodDisruptionBudget":     func() any { return &policyv1.PodDisruptionBudget{} },
	"NetworkPolicy":           func() any { return &networkingv1.NetworkPolicy{} },
}

// unknownFields returns what objects have that their types have not. TestAPIServer asks a real API server, also about
// types of others.
func unknownFields(t *testing.T, objects map[string]object) (found []string) {
	t.Helper()
	for name, o := range objects {
		kind, _ := o["kind"].(string)
		if kinds[kind] == nil {
			if version, _ := o["apiVersion"].(string); version != "monitoring.coreos.com/v1" {
				found = append(found, fmt.Sprintf("%s of %s has no type here", name, version))
			}
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(marshal(t, o)), kinds[kind]()); err != nil {
			found = append(found, fmt.Sprintf("%s: %v", name, err))
		}
	}
	return found
}
