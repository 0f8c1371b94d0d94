package xds

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
)

// FuzzJudge sends any response. Accepted content compiles, and stays the same if it is sent again. Refused content has
// an error.
func FuzzJudge(f *testing.F) {
	for _, rules := range [][]*descriptor{nil, {{Key: "a", Value: "*"}}, {
		{Key: "a", RateLimit: &policy{RequestsPerUnit: 5, Unit: 1}, Descriptors: []*descriptor{
			{Key: "b", Value: "x", RateLimit: &policy{Unlimited: true}, DetailedMetric: true},
			{Key: "c", ShadowMode: true},
		}},
	}} {
		wire, err := proto.Marshal(partnertest.Domain("d", rules...))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire, wire)
		f.Add(wire, []byte{0x12, 1, 'e', 0xff})
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		s := New(Options{Server: "gateway:18001"})
		resources := []*anypb.Any{{TypeUrl: typeURL, Value: one}, {TypeUrl: typeURL, Value: two}}
		v := s.judge(accepted{}, resources)
		if v.useless && v.problems == 0 {
			t.Fatal("nothing is used, and there is no reason")
		}
		for _, why := range v.findings {
			if len(why) > 2*maxFinding {
				t.Fatalf("a finding of %d bytes", len(why))
			}
		}
		b := descriptors.NewBuilder(descriptors.Process{Lenient: true})
		files := s.files(v.next)
		for _, file := range files {
			if !IsFile(file) {
				t.Fatalf("%q is no file of the control plane", file.Name)
			}
			Add(b, file)
		}
		if _, err := b.Build(); err != nil && len(files) > 0 {
			t.Fatalf("what was accepted does not compile: %v", err)
		}
		if again := s.judge(v.next, resources); len(s.files(again.next)) != len(files) {
			t.Fatal("the same answer is judged in another way")
		}
	})
}
