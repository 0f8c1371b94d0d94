//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/test/weirtest"
)

// What init writes for quotas works as it is: a real Envoy limits by what Weir assigns to it.
func TestInitQuota(t *testing.T) {
	t.Parallel()
	dir := initialized(t, "quota")
	s := startWeir(t, filepath.Join(dir, "rules"), "--quota")
	front := startInitialized(t, dir, s).Listener("front")
	search := starterRequest{path: "/search?q="}
	if got := search.send(t, front, 0); got != http.StatusOK {
		t.Fatalf("the first request is answered %d", got)
	}
	const perSecond = 20
	var assigned adminapi.Quota
	for end := time.Now().Add(30 * time.Second); assigned.Rate < 0.9*perSecond; {
		if time.Now().After(end) {
			t.Fatalf("a busy Envoy, which is alone, has %+v of %d a second", assigned, perSecond)
		}
		for began := time.Now(); time.Since(began) < time.Second; time.Sleep(10 * time.Millisecond) {
			search.send(t, front, 0)
		}
		var list adminapi.QuotaList
		out, err := weirtest.Run(t, "top", "--quotas", "--server", "http://"+s.HTTP, "--domain", "demo", "--json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &list)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for i := range list.Buckets {
			if list.Buckets[i].Rule == "generic_key=search" {
				assigned = list.Buckets[i]
			}
		}
	}
	start, passed, sent := time.Now(), 0, 0
	for time.Since(start) < 3*time.Second {
		if search.send(t, front, sent) == http.StatusOK {
			passed++
		}
		sent++
	}
	took := time.Since(start).Seconds()
	most := float64(assigned.Burst) + perSecond*took + 1
	if float64(passed) > most || passed == sent || float64(passed) < perSecond*took/2 {
		t.Errorf("%d of %d requests passed in %.1f s, want %.0f at most, and not far less", passed, sent, took, most)
	}
	if got := (starterRequest{path: "/"}).send(t, front, 0); got != http.StatusOK {
		t.Errorf("a request of the other bucket is answered %d", got)
	}
	if assigned.Envoys != 1 {
		t.Errorf("%d Envoys have the bucket, want 1", assigned.Envoys)
	}
	began := time.Now()
	s.Terminate(20 * time.Second)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("a stop with an open stream took %s", took)
	}
}
