package descriptors_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// heap returns the number of bytes in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A Set, or a text of it that outlives it, does not keep the file's text in memory.
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
	before := heap()
	set := casetest.Compile(t, file())
	after := heap()
	if kept := int64(after) - int64(before); kept > size/2 {
		t.Errorf("%d bytes are kept of rules that take few: a part of the file's text keeps all of it", kept)
	}
	runtime.KeepAlive(set)
}
