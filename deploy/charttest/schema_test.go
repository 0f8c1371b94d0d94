package charttest

import (
	"strings"
	"testing"
)

// Wrong values are refused, with a message that says which one it is.
func TestWrongValues(t *testing.T) {
	for _, tt := range []struct{ values, want string }{
		{"{replica: 3}", "additional properties 'replica' not allowed"},
		{"{redis: {uri: x}}", "at '/redis': additional properties 'uri' not allowed"},
		{"{replicas: two}", "at '/replicas'"},
		{"{kind: StatefulSet}", "at '/kind': value must be one of 'Deployment', 'DaemonSet'"},
		{"{redis: {url: 'redis:6379'}}", "at '/redis/url'"},
		{"{onStoreFailure: open}", "at '/onStoreFailure': value must be one of 'local', 'allow', 'deny', 'error'"},
		{"{image: {digest: abc}}", "at '/image/digest'"},
		{"{extraArgs: [serve]}", "at '/extraArgs/0'"},
		{"{rules: {files: {a.yaml: {domain: shop}}}}", "at '/rules/files/a.yaml': got object, want string"},
		{"{drainDelay: 5s}", "at '/drainDelay': got string, want integer"},
		{"{service: {port: 70000}}", "at '/service/port'"},
		{"{redis: {url: 'redis://:geheim@redis:6379/0'}}", "redis.url has a password"},
		{"{redis: {url: 'redis://redis:6379', urlSecret: {name: a}}}", "redis.url and redis.urlSecret are both set"},
		{"{redis: {passwordSecret: {name: a}}}", "which is not set"},
		{"{redis: {url: 'redis://redis:6379', tls: {secretName: a}}}", "begin it with rediss or valkeys"},
		{"{redis: {url: 'valkeyss://a'}}", "at '/redis/url'"},
		{"{rules: {files: {a.yaml: b}, existingConfigMap: c}}", "rules.files and rules.existingConfigMap are both set"},
		{"{rules: {files: {shop.txt: b}}}", `rules.files has "shop.txt", which Weir would not read`},
		{"{rules: {published: true}}", "rules.published needs the Redis"},
		{"{aiGateway: {enabled: true}, kind: DaemonSet}", "aiGateway has its own control plane and Service"},
		{"{aiGateway: {enabled: true}, rules: {xds: {server: 'a:1'}}}", "aiGateway has its own control plane and Service"},
		{"{kind: DaemonSet, replicas: 2}", "replicas is for kind: Deployment"},
		{"{kind: DaemonSet, autoscaling: {enabled: true}}", "autoscaling is for kind: Deployment"},
		{"{autoscaling: {enabled: true, targetCPUUtilizationPercentage: null}}", "neither"},
		{"{autoscaling: {enabled: true, minReplicas: 5, maxReplicas: 4}}", "is larger than autoscaling.maxReplicas"},
		{"{grpc: {tls: {clientCA: true}}}", "need grpc.tls.secretName"},
		{"{grpc: {tls: {secretName: a, clientNames: [b]}}}", "needs grpc.tls.clientCA: true"},
		{"{http: {tls: {clientCA: true}}}", "http.tls.clientCA needs http.tls.secretName"},
		{
			"{metrics: {podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}}",
			"Prometheus would scrape each pod twice",
		},
		{
			"{terminationGracePeriodSeconds: 30, drainDelay: 25}",
			"drainDelay and stopTimeout are 30 together: Kubernetes would kill Weir before its requests in flight end; leave it out, or " +
				"write 31 or more",
		},
		{"{terminationGracePeriodSeconds: 0}", "write 21 or more"},
		{"{service: {port: 80}}", "service.port of a headless Service must be 8081"},
		{"{resources: {limits: {memory: lots}}}", `resources.limits.memory is "lots"; write a number with Mi, Gi, M or G`},
	} {
		if _, _, err := render(t, "weir", tt.values); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", tt.values, err, tt.want)
		}
	}
}
