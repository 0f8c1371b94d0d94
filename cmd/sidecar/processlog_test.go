package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/app"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Whatever hangs, serve ends in a bounded time after it was told to.
func TestEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		o := &app.Options{StopOptions: app.StopOptions{DrainDelay: 2 * time.Second, StopTimeout: 5 * time.Second}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- endInTime(ctx, o, func() error { <-hang; return nil }) }()
		<-time.After(time.Hour) // as long as nobody tells it to, it runs
		synctest.Wait()
		if len(ended) > 0 {
			t.Fatal(<-ended)
		}
		begin := time.Now()
		cancel()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "something in it hangs") {
			t.Errorf("error %v", err)
		}
		if took, want := time.Since(begin), 7*time.Second+app.StopBound; took != want {
			t.Errorf("it took %s, want %s", took, want)
		}
		close(hang)
	})
}

// The line that says how many were dropped has the form of the log.
func TestNoteOfDroppedLines(t *testing.T) {
	var out proctest.Buffer
	l, err := newProcessLog(&out, "info", "json")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		l.Put(make([]byte, maxLogLine+1))
	}
	l.Close()
	var line struct {
		Level, Msg string
		Dropped    int
	}
	if err := json.Unmarshal([]byte(out.String()), &line); err != nil || line.Level != "WARN" || line.Dropped != 3 {
		t.Errorf("%+v, %v: %s", line, err, out.String())
	}
	if s := l.stats(); s.FullBuffer != 3 {
		t.Errorf("%+v", s)
	}
}
