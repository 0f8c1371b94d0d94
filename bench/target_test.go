package main

import (
	"os"
	"regexp"
	"testing"
)

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
