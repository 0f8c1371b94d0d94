//go:build e2e

package gateway

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// deployment is the part of a Deployment that the test reads.
type deployment struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Template struct {
			Metadata struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
			Spec struct {
				Containers []container `json:"containers"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

type container struct {
	Name    string   `json:"name"`
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
	Env     []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
	StartupProbe   probe `json:"startupProbe"`
	LivenessProbe  probe `json:"livenessProbe"`
	ReadinessProbe probe `json:"readinessProbe"`
}

type probe struct {
	HTTPGet struct {
		Path   string `json:"path"`
		Port   int    `json:"port"`
		Scheme string `json:"scheme"`
	} `json:"httpGet"`
}

func (p probe) url(host string) string {
	address := net.JoinHostPort(host, strconv.Itoa(p.HTTPGet.Port))
	return strings.ToLower(p.HTTPGet.Scheme) + "://" + address + p.HTTPGet.Path
}

// buildImages builds the rate limit image for the gateway, and imports the images of Envoy and Redis.
func buildImages(t *testing.T) {
	t.Helper()
	podtest.Command(t, "podman", "network", "create", "--subnet", network, "--disable-dns", "cluster")
	if peer {
		podtest.Import(t, root, "envoy.tar", "redis.tar")
		file := filepath.Join(t.TempDir(), "Containerfile")
		write(t, file, "FROM "+envoyImage+"\nCOPY service_cmd /bin/ratelimit\nENTRYPOINT [\"/bin/ratelimit\"]\n")
		podtest.Command(t, "podman", "build", "--tag", image, "--file", file, filepath.Join(podtest.Tools(t, root), "bin"))
		return
	}
	podtest.Import(t, root)
	args := append([]string{"build", "--tag", image, "--target", "weir"}, podtest.BuildArgs(t)...)
	podtest.Command(t, "podman", append(args, root)...)
}

func startRedis(t *testing.T) {
	t.Helper()
	podtest.Command(t, "podman", "run", "--detach", "--name", "redis", "--network", "cluster", "--ip", redisIP,
		"docker.io/library/redis:7", "redis-server", "--save", "")
}

// startService runs the rate limit service's Deployment as the gateway created it. Like a kubelet it turns the Secret
// that the pod mounts into files: podman 4.3 mounts Secrets undecoded.
func (c *cluster) startService(t *testing.T) container {
	t.Helper()
	var d deployment
	text := c.Get(t, &d, "--namespace", system, "deployment", "envoy-ratelimit")
	pod := d.Spec.Template.Spec.Containers[0]
	if pod.Image != image || !slices.Equal(pod.Command, []string{"/bin/ratelimit"}) || pod.Args != nil {
		t.Errorf("the gateway's Deployment runs %s with command %q and arguments %q", pod.Image, pod.Command, pod.Args)
	}
	certs := filepath.Join(c.dir, "ratelimit-certs")
	c.secret(t, "envoy-rate-limit", certs)
	secret := regexp.MustCompile(`"secret": \{[^}]*"secretName": "envoy-rate-limit"[^}]*\}`)
	if len(secret.FindAllString(text, -1)) != 1 {
		t.Fatalf("the gateway's Deployment mounts no Secret:\n%s", text)
	}
	text = secret.ReplaceAllString(text, fmt.Sprintf(`"hostPath": {"path": %q}`, certs))
	var files struct {
		Data map[string]string `json:"data"`
	}
	config := c.Get(t, &files, "--namespace", system, "configmap", "statsd-exporter-config")
	manifest := filepath.Join(c.dir, "ratelimit.yaml")
	write(t, manifest, config+"\n---\n"+text)
	podtest.Command(t, "podman", "kube", "play", "--network", "cluster", "--ip", weirIP, manifest)
	proctest.Await(t, patience, func() error { return ok(pod.StartupProbe.url(weirIP)) })
	c.Apply(t, endpointSlice)
	return pod
}

// endpointSlice is the object that a cluster's controller creates for the Service and the pod. Envoy gets the address
// from it.
const endpointSlice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: envoy-ratelimit
  namespace: envoy-gateway-system
  labels: {kubernetes.io/service-name: envoy-ratelimit}
addressType: IPv4
endpoints: [{addresses: [` + weirIP + `], conditions: {ready: true}}]
ports: [{name: http, port: 8081, protocol: TCP}, {name: metrics, port: 19001, protocol: TCP}]
`

// startProxy runs Envoy by the arguments of the Deployment that the gateway created for a Gateway.
func (c *cluster) startProxy(t *testing.T, namespace, gateway string) {
	t.Helper()
	var list struct {
		Items []deployment `json:"items"`
	}
	proctest.Await(t, patience, func() error {
		const owner = "gateway.envoyproxy.io/owning-gateway-"
		c.Get(t, &list, "--namespace", system, "deployments", "--selector",
			owner+"namespace="+namespace+","+owner+"name="+gateway)
		if len(list.Items) == 0 {
			return errors.New("the gateway creates no Deployment for its listeners")
		}
		return nil
	})
	name := list.Items[0].Metadata.Name
	containers := list.Items[0].Spec.Template.Spec.Containers
	envoy := containers[slices.IndexFunc(containers, func(c container) bool { return c.Name == "envoy" })]

	certs, sds := filepath.Join(c.dir, "proxy-certs"), filepath.Join(c.dir, "proxy-sds")
	c.secret(t, "envoy", certs)
	var files struct {
		Data map[string]string `json:"data"`
	}
	c.Get(t, &files, "--namespace", system, "configmap", name)
	for file, content := range files.Data {
		write(t, filepath.Join(sds, file), content)
	}
	variables := map[string]string{"ENVOY_POD_NAME": "proxy", "ENVOY_POD_NAMESPACE": system, "ENVOY_SERVICE_ZONE": ""}
	for _, v := range envoy.Env {
		if v.Value != "" {
			variables[v.Name] = v.Value
		}
	}
	args := []string{
		"run", "--detach", "--name", "proxy", "--network", "cluster", "--ip", proxyIP,
		"--dns", "127.0.0.1", // refuses at once: Envoy may ask a name server before it looks into the hosts file
		"--volume", certs + ":/certs:ro", "--volume", sds + ":/sds:ro", envoyImage,
	}
	for _, arg := range envoy.Args {
		for _, name := range slices.Sorted(maps.Keys(variables)) {
			arg = strings.ReplaceAll(arg, "$("+name+")", variables[name])
		}
		args = append(args, openAdmin(arg))
	}
	podtest.Command(t, "podman", args...)
	proctest.Await(t, patience, func() error { return ok(envoy.ReadinessProbe.url(proxyIP)) })
}

// openAdmin has Envoy's admin interface listen for the test, too.
func openAdmin(bootstrap string) string {
	before, admin, found := strings.Cut(bootstrap, "admin:")
	if !found {
		return bootstrap
	}
	return before + "admin:" + strings.Replace(admin, "address: 127.0.0.1", "address: 0.0.0.0", 1)
}

// ok returns nil if the URL answers with status 200.
func ok(url string) error {
	status, _, body, err := request(http.MethodGet, url, nil)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %.1000s", url, status, body)
	}
	return err
}

// request sends one request.
func request(method, url string, headers map[string]string) (status int, header http.Header, body string, err error) {
	req, err := http.NewRequest(method, url, http.NoBody)
	if err != nil {
		return 0, nil, "", err
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	client := http.Client{Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(text), errors.Join(err, resp.Body.Close())
}
