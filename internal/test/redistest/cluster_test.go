package redistest

import (
	"testing"
	"time"
)

func TestCluster(t *testing.T) {
	start := time.Now()
	c := StartCluster(t, 3)
	t.Logf("started after %s", time.Since(start))
	c.Fail(0)
	c.AwaitOK()
	t.Logf("failed over after %s", time.Since(start))
}

func TestSentinel(t *testing.T) {
	start := time.Now()
	s := StartSentinel(t)
	t.Logf("started after %s", time.Since(start))
	s.Master.Kill()
	AwaitMaster(t, s.Replica)
	t.Logf("failed over after %s", time.Since(start))
}
