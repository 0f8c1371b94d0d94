package logging

import (
	"encoding/json"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// The line that says how many were dropped has the form of the log.
func TestNoteOfDroppedLines(t *testing.T) {
	var out proctest.Buffer
	l, err := NewProcess(&out, Config{LogLevel: "info", LogFormat: "json"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		l.Put(make([]byte, maxLine+1))
	}
	l.Close()
	var line struct {
		Level, Msg string
		Dropped    int
	}
	if err := json.Unmarshal([]byte(out.String()), &line); err != nil || line.Level != "WARN" || line.Dropped != 3 {
		t.Errorf("%+v, %v: %s", line, err, out.String())
	}
	if s := l.Stats(); s.FullBuffer != 3 {
		t.Errorf("%+v", s)
	}
}
