package xds

import (
	"testing"
	"testing/synctest"
	"time"
)

// A response that takes long to judge does not delay the end of the process.
func TestCloseWaitsForNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began := New(Options{}), time.Now()
		s.cancel, s.ended = func() {}, make(chan struct{}) // it never ends
		if err := s.Close(); err != nil || time.Since(began) > time.Second {
			t.Errorf("closed after %s: %v", time.Since(began), err)
		}
	})
}
