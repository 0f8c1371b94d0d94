package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/decisionlog"
)

// logged are options of a process that writes every decision to a file.
func logged(t *testing.T) (o Options, path string) {
	t.Helper()
	o, path = options(t, rulesOf("1")), filepath.Join(t.TempDir(), "decisions.log")
	o.DecisionLog, o.DecisionLogSample, o.DecisionLogSampleDenied = path, 1, 1
	o.DecisionLogRate, o.DecisionLogValues = 1000, "hash"
	return o, path
}

// What was decided until the stop is in the file when the process has ended, hashed by the secret of the key file.
func TestDecisionLog(t *testing.T) {
	o, path := logged(t)
	o.DecisionLogKeyFile = filepath.Join(t.TempDir(), "key")
	writeFile(t, o.DecisionLogKeyFile, "0123456789abcdef\n")
	p := start(t, o)
	p.ask("ann")
	p.ask("ann")
	want(t, "weir_decision_log_lines_total", "2", func() string { return p.metric("weir_decision_log_lines_total") })
	p.ask("bob")
	p.wait()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines, want 3:\n%s", len(lines), text)
	}
	for i, has := range []string{`"answer":"ok"`, `"answer":"over_limit"`, `"answer":"ok"`} {
		client := decisionlog.HashValues([]byte("0123456789abcdef"))("client", []string{"ann", "ann", "bob"}[i])
		if !strings.Contains(lines[i], has) || !strings.Contains(lines[i], client) {
			t.Errorf("no %s and %s in %s", has, client, lines[i])
		}
	}
}

// What is wrong with the options stops the start, and says which flag.
func TestDecisionLogIsRefused(t *testing.T) {
	for _, tt := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.DecisionLogSample = 1.5 }, "--decision-log-sample: must be a share from 0 to 1, got 1.5"},
		{func(o *Options) { o.DecisionLogSampleDenied = -1 }, "--decision-log-sample-denied: must be a share from 0 to 1, " +
			"got -1"},
		{func(o *Options) { o.DecisionLogRate = 0 }, "--decision-log-rate: must be between 1 and 1000000, got 0"},
		{func(o *Options) { o.DecisionLogValues = "sha" }, `--decision-log-values: must be plain, hash or none, got "sha"`},
		{func(o *Options) { o.DecisionLog = "/nowhere/log" }, "--decision-log: open /nowhere/log: no such file or directory"},
		{func(o *Options) { o.DecisionLogKeyFile = "/nowhere" }, "--decision-log-key-file: open /nowhere: no such file or " +
			"directory"},
	} {
		o, _ := logged(t)
		o.Log = slog.New(slog.DiscardHandler)
		tt.change(&o)
		if _, err := New(t.Context(), o); err == nil || err.Error() != tt.want {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
}
