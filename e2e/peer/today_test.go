package peer

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/weirtest"
)

// dropRefused removes the files that today's weir refuses.
func dropRefused(t *testing.T, dir string) map[string]bool {
	out, _ := weirtest.Run(t, "check", dir)
	gone := map[string]bool{}
	for l := range strings.Lines(out) {
		if m := regexp.MustCompile(`(case\d+)\.yaml:\d+`).FindStringSubmatch(l); m != nil && !strings.Contains(l, "warning") {
			_ = os.Remove(dir + "/" + m[1] + ".yaml")
			gone[m[1]] = true
		}
	}
	return gone
}

func ignoredToday(diff string) bool {
	return strings.Contains(diff, "response_headers_to_add: number")
}
