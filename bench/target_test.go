package main

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestParseTarget(t *testing.T) {
	got, err := parseTarget("peer=127.0.0.1:8081,pid=12,redis-pid=34")
	if err != nil {
		t.Fatal(err)
	}
	if got.name != "peer" || got.addr != "127.0.0.1:8081" || got.pid != 12 || got.redisPID != 34 || got.alwaysOK {
		t.Errorf("got %+v", got)
	}
	if got, err := parseTarget("peer=[::1]:8081"); err != nil || got.addr != "[::1]:8081" || got.pid != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, text := range []string{"peer", "=x:1", "peer=", "peer=x:1,pid=", "peer=x:1,pid=0", "peer=x:1,cpu=3"} {
		if _, err := parseTarget(text); err == nil || !strings.Contains(err.Error(), "want NAME=HOST:PORT") {
			t.Errorf("%q: error %v, want the form", text, err)
		}
	}
}

func TestSumCalls(t *testing.T) {
	info := "# Commandstats\r\ncmdstat_get:calls=900,usec=5\r\ncmdstat_evalsha:calls=40,usec=200,usec_per_call=5.00\r\n" +
		"cmdstat_fcall:calls=2,usec=9\r\ncmdstat_incrby:calls=7,usec=9\r\ncmdstat_evalsha_ro:calls=100,usec=1\r\n"
	if got, err := sumCalls(info); err != nil || got != 49 {
		t.Errorf("%d calls, %v; want 49", got, err)
	}
	if _, err := sumCalls("cmdstat_eval:calls=x,usec=5"); err == nil || !strings.Contains(err.Error(), "invalid syntax") {
		t.Errorf("error %v, want one of the number", err)
	}
}

func TestCPUTime(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the CPU time of a process is read on Linux only")
	}
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const busy = 20 * time.Millisecond
	for took := time.Duration(0); took < busy; {
		now, err := cpuTime(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		took = now - before
		if took < 0 || took > time.Minute {
			t.Fatalf("took %v of CPU time", took)
		}
	}
	if _, err := cpuTime(1 << 22); err == nil { // above any pid
		t.Error("a process that is not there has CPU time")
	}
}

// TestSameGRPC holds the no-op server to the gRPC that Weir is built with.
func TestSameGRPC(t *testing.T) {
	version := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`google\.golang\.org/grpc (v\S+)`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s requires no gRPC", file)
		}
		return string(found[1])
	}
	if ours, weirs := version("go.mod"), version("../go.mod"); ours != weirs {
		t.Errorf("go.mod has gRPC %s, ../go.mod %s: go get google.golang.org/grpc@%[2]s here", ours, weirs)
	}
}

func TestSpecsAreDifferent(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range specs {
		what := fmt.Sprint(s.binary, s.redis, s.fields, s.args)
		if seen[s.name] || seen[what] {
			t.Errorf("%s is there twice", s.name)
		}
		seen[s.name], seen[what] = true, true
	}
}
