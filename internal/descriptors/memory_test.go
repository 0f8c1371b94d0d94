package descriptors_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/ruletest"
)

// Rules are few pieces of memory, which the collector follows.
func TestFewPieces(t *testing.T) {
	const rules = 10_000
	for _, form := range []string{
		"- {key: k%d, rate_limit: {requests_per_unit: 1, unit: hour}}",
		"- {key: k, value: v%d, rate_limit: {requests_per_unit: 1, unit: hour}}",
		"- {key: k, value: v%d-*, rate_limits: [{requests_per_unit: 1, unit: hour}, {requests_per_unit: 2, unit: day}]}",
	} {
		var text strings.Builder
		text.WriteString("domain: d\ndescriptors:\n")
		for i := range rules {
			fmt.Fprintf(&text, form+"\n", i)
		}
		_, before := heap()
		set := ruletest.Compile(t, text.String())
		_, after := heap()
		if pieces := int64(after) - int64(before); pieces > rules/2 {
			t.Errorf("%d pieces of memory for %d rules like %s", pieces, rules, form)
		}
		runtime.KeepAlive(set)
	}
}

// heap is what is in use.
func heap() (bytes, pieces uint64) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, m.HeapObjects
}

// A Set, or a text of it that outlives it, does not keep the file in memory.
func TestFileIsForgotten(t *testing.T) {
	const size = 16 << 20
	file := func() string {
		return "domain: shop\n" + strings.Repeat("# nothing\n", size/10) + `descriptors:
  - key: user
    value: "me"
    owner: platform
    description: for x
    x-ticket: {of: "us"}
    metadata: {tier: gold, all: [a, b]}
    rate_limits:
      - {name: fast, requests_per_unit: 1, unit: second, replaces: [{name: slow}]}
      - {name: slow, requests_per_unit: 9, unit: hour}
  - key: ip
    cidr: [10.0.0.0/8]
    response: {body: "slow down", headers: {x-why: because}}
    rate_limit: {requests_per_unit: 1, unit: second}
  - key: path
    regex: "/a[0-9]+"
    descriptors:
      - {key: method, values: [GET, PUT], rate_limit: {requests_per_unit: 1, unit: second}}
`
	}
	before, _ := heap()
	set := ruletest.Compile(t, file())
	after, _ := heap()
	if kept := int64(after) - int64(before); kept > size/2 {
		t.Errorf("%d bytes are kept of rules that take few: a part of the file's text keeps all of it", kept)
	}
	runtime.KeepAlive(set)
}
