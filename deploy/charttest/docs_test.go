package charttest

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// page is the page whose commands are run.
const page = "../../docs/start/kubernetes.md"

// needsNode finds commands that need a running pod, an image or another program.
var needsNode = regexp.MustCompile(`^(docker|helm|curl|for|sed) |^kubectl (exec|rollout|port-forward)`)

// The commands of docs/start/kubernetes.md work against a real API server, one after the other in the page's order, as
// far as they need no node.
func TestPage(t *testing.T) {
	c := podtest.StartCluster(t)
	c.Apply(t, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: default}}")
	bin := t.TempDir()
	kubectl := "#!/bin/sh\nexec " + c.Program + " --kubeconfig " + c.Kubeconfig + " \"$@\"\n"
	if err := os.WriteFile(bin+"/kubectl", []byte(kubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(readFile(t, page), -1) {
		for command := range strings.Lines(block[1]) {
			if needsNode.MatchString(command) {
				continue
			}
			cmd := exec.Command("bash", "-euo", "pipefail", "-c", command)
			cmd.Dir = "../.."
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s", strings.TrimSpace(command), err, out)
			}
			ran++
			if strings.Contains(command, "| sed") {
				var rules object
				c.Get(t, &rules, "configmap", "weir-rules")
				if text, _ := podtest.At(rules, "data").(object); !strings.Contains(marshal(t, text), "requests_per_unit: 100, ") {
					t.Errorf("%s has not changed the rules:\n%v", strings.TrimSpace(command), text)
				}
			}
		}
	}
	if ran < 7 {
		t.Errorf("%d commands of the page were run: the pattern no longer finds them", ran)
	}
}
