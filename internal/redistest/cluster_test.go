package redistest

import (
	"fmt"
	"testing"
	"time"
)

func TestCluster(t *testing.T) {
	start := time.Now()
	c := StartCluster(t, 3)
	t.Logf("started after %s", time.Since(start))
	c.Masters[0].Kill()
	Await(t, func() error {
		var role any
		err := TryDo(c.Replicas[0], &role, "role")
		if err == nil && fmt.Sprint(role)[:7] != "[master" {
			err = fmt.Errorf("%v", role)
		}
		return err
	})
	c.AwaitOK()
	t.Logf("failed over after %s", time.Since(start))
}

func TestSentinel(t *testing.T) {
	start := time.Now()
	s := StartSentinel(t)
	t.Logf("started after %s", time.Since(start))
	s.Master.Kill()
	Await(t, func() error {
		var role any
		err := TryDo(s.Replica, &role, "role")
		if err == nil && fmt.Sprint(role)[:7] != "[master" {
			err = fmt.Errorf("%v", role)
		}
		return err
	})
	t.Logf("failed over after %s", time.Since(start))
}
