//go:build e2e && linux

package istio

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// istioModule has Envoy's bootstrap template, which Istio's image has, too. Its version is that of scripts/tools.sh.
const istioModule = "istio.io/istio@v0.0.0-20260827124520-eed52ebb66ad"

// User of istio-proxy, and the one of Weir's image.
const proxyUser, weirUser = 1337, 65534

// pod is a pod that the API server has, with istio-agent and Envoy of the container that Istio injected.
type pod struct {
	*namespace

	ip, dir string
	spec    object
	meta    object
	weir    *proctest.Process
}

// startPod creates the Pod that the Deployment of this name would create, and runs its istio-proxy.
func (m *mesh) startPod(t *testing.T, ns, name, ip string) *pod {
	t.Helper()
	p := m.createPod(t, ns, name, ip, name)
	p.namespace = m.namespace(t, name, ip)
	m.runProxy(t, p)
	return p
}

// createPod creates the Pod of a Deployment, as the controller does, and says that it runs, as the kubelet does.
func (m *mesh) createPod(t *testing.T, ns, deploymentName, ip, name string) *pod {
	t.Helper()
	var deployment object
	m.Get(t, &deployment, "--namespace", ns, "deployment", deploymentName)
	template := child(deployment, "spec", "template")
	template["apiVersion"], template["kind"] = "v1", "Pod"
	meta := child(template, "metadata")
	meta["name"], meta["namespace"] = name, ns
	manifest, err := json.Marshal(template)
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() error {
		_, err := m.Try(string(manifest), "create", "-f", "-")
		return err
	})
	status := fmt.Sprintf(`{"status": {"phase": "Running", "podIP": %[1]q, "podIPs": [{"ip": %[1]q}], "hostIP": %[2]q,
		"conditions": [{"type": "Ready", "status": "True"}]}}`, ip, hostIP)
	m.Kubectl(t, "--namespace", ns, "patch", "pod", name, "--subresource=status", "--type=merge", "--patch", status)
	var made object
	m.Get(t, &made, "--namespace", ns, "pod", name)
	p := &pod{ip: ip, dir: filepath.Join(m.dir, name), spec: child(made, "spec"), meta: child(made, "metadata")}
	p.meta["podIP"] = ip
	return p
}

// container returns a container of the pod.
func (p *pod) container(t *testing.T, name string) object {
	t.Helper()
	for _, kind := range []string{"initContainers", "containers"} {
		for _, c := range list(p.spec, kind) {
			if text(c, "name") == name {
				return child(c)
			}
		}
	}
	t.Fatalf("the pod %s has no container %s", p.meta["name"], name)
	return nil
}

// env resolves the environment of a container, as the kubelet does.
func (p *pod) env(c object) (env []string, values map[string]string) {
	fields := map[string]string{
		"metadata.name": text(p.meta, "name"), "metadata.namespace": text(p.meta, "namespace"), "status.podIP": p.ip,
		"status.hostIP": hostIP, "spec.serviceAccountName": text(p.spec, "serviceAccountName"), "spec.nodeName": "node",
	}
	values = map[string]string{}
	for _, v := range list(c, "env") {
		name, value := text(v, "name"), text(v, "value")
		if field := text(v, "valueFrom", "fieldRef", "fieldPath"); field != "" {
			value = fields[field]
		}
		switch text(v, "valueFrom", "resourceFieldRef", "resource") {
		case "limits.cpu":
			value = "1"
		case "limits.memory":
			value = "1073741824"
		}
		values[name] = value
		env = append(env, name+"="+value)
	}
	return env, values
}

// arguments resolves the arguments of a container.
func arguments(c object, values map[string]string) (args []string) {
	for _, arg := range list(c, "args") {
		s := text(arg)
		for name, value := range values {
			s = strings.ReplaceAll(s, "$("+name+")", value)
		}
		args = append(args, s)
	}
	return args
}

// runProxy runs the pod's istio-proxy, and waits until it is ready.
func (m *mesh) runProxy(t *testing.T, p *pod) {
	t.Helper()
	m.startProxy(t, p).Await(patience, func() error {
		a := p.one(t, question{Method: "GET", URL: "http://127.0.0.1:15021/healthz/ready"})
		if a.Status != 200 {
			return fmt.Errorf("istio-proxy of %s is not ready: %+v", p.name, a)
		}
		return nil
	})
}

// startProxy starts the pod's istio-proxy: istio-agent, which starts Envoy. If the pod has a container for it, it first
// redirects the pod's traffic to Envoy.
func (m *mesh) startProxy(t *testing.T, p *pod) *proctest.Process {
	t.Helper()
	ns, account := text(p.meta, "namespace"), text(p.spec, "serviceAccountName")
	agent := absolute(t, tool("pilot-agent"))
	for _, c := range list(p.spec, "initContainers") {
		if text(c, "name") == "istio-init" {
			args := arguments(child(c), nil)
			cmd := p.command(0, 0, p.dir, nil, agent, args...)
			write(t, filepath.Join(p.dir, "empty"), "")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("istio-init: %v\n%s", err, out)
			}
		}
	}
	var root, config object
	m.Get(t, &root, "--namespace", ns, "configmap", "istio-ca-root-cert")
	m.Get(t, &config, "--namespace", "istio-system", "configmap", "istio")
	token := m.Kubectl(t, "--namespace", ns, "create", "token", account, "--audience=istio-ca")
	bootstrap, err := os.ReadFile(filepath.Join(moduleDir(t, istioModule), "tools/packaging/common/envoy_bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(p.dir, "var/run/secrets/istio/root-cert.pem"), text(root, "data", "root-cert.pem"))
	write(t, filepath.Join(p.dir, "var/run/secrets/tokens/istio-token"), strings.TrimSpace(token))
	write(t, filepath.Join(p.dir, "var/lib/istio/envoy/envoy_bootstrap_tmpl.json"),
		strings.ReplaceAll(string(bootstrap), "if .metadata_discovery", "if false")) // Envoy's own build lacks this extension
	write(t, filepath.Join(p.dir, "etc/istio/config/mesh"), text(config, "data", "mesh"))
	write(t, filepath.Join(p.dir, "etc/istio/pod/labels"), downward(p.meta["labels"]))
	write(t, filepath.Join(p.dir, "etc/istio/pod/annotations"), downward(p.meta["annotations"]))
	run(t, "chown", "-R", strconv.Itoa(proxyUser), p.dir)
	c := p.container(t, "istio-proxy")
	env, values := p.env(c)
	proxy := proctest.Start(t, "istio-proxy of "+p.name, p.command(proxyUser, proxyUser, p.dir, env, agent,
		append(arguments(c, values), "--proxyLogLevel=warning")...))
	t.Cleanup(func() { p.killAll(t) })
	return proxy
}

// killAll ends what runs in the pod. Envoy would outlive istio-agent otherwise, and hold its output open.
func (p *pod) killAll(t *testing.T) {
	t.Helper()
	for pid := range strings.FieldsSeq(run(t, "ip", "netns", "pids", p.name)) {
		if pid, err := strconv.Atoi(pid); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// downward is how the kubelet writes labels and annotations into a file.
func downward(v any) string {
	m, _ := v.(object)
	var lines []string
	for name, value := range m {
		lines = append(lines, fmt.Sprintf("%s=%q\n", name, value))
	}
	sort.Strings(lines)
	return strings.Join(lines, "")
}

// moduleDir is where the Go command keeps a module.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	var found struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil {
		t.Fatal(err)
	}
	return found.Dir
}

// mountRules writes the files of the ConfigMaps of rules into a directory of the pod, as the kubelet does.
func (p *pod) mountRules(t *testing.T, m *mesh) (dir string) {
	t.Helper()
	dir = filepath.Join(p.dir, "rules")
	var all object
	m.Get(t, &all, "--namespace", text(p.meta, "namespace"), "configmap")
	for _, config := range list(all, "items") {
		if strings.HasPrefix(text(config, "metadata", "name"), "weir-") {
			for name, content := range child(config, "data") {
				write(t, filepath.Join(dir, name), text(content))
			}
		}
	}
	return dir
}

// runWeir runs the pod's container weir: its arguments and flags, with the ConfigMaps' files in a directory of the pod.
func (p *pod) runWeir(t *testing.T, m *mesh, flags ...string) {
	t.Helper()
	rules := p.mountRules(t, m)
	c := p.container(t, "weir")
	env, values := p.env(c)
	args := append(arguments(c, values), flags...)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "/etc/weir/rules", rules)
	}
	p.weir = proctest.Start(t, "weir of "+p.name, p.command(weirUser, proxyUser, "/", env, m.weir, args...))
}
