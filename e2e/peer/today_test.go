package peer

import (
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var todayFlag = flag.Bool("peer.today", false, "")

// dropRefused removes the files that today's weir refuses.
func dropRefused(t *testing.T, dir string) map[string]bool {
	o, _ := exec.Command(*weirFlag, "check", dir).CombinedOutput()
	out := string(o)
	gone := map[string]bool{}
	for l := range strings.Lines(out) {
		if m := regexp.MustCompile(`(case\d+)\.yaml:\d+`).FindStringSubmatch(l); m != nil && !strings.Contains(l, "warning") {
			_ = os.Remove(dir + "/" + m[1] + ".yaml")
			gone[m[1]] = true
		}
	}
	return gone
}
