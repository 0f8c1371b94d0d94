package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/weir-ratelimit/weir/internal/app"
	"github.com/weir-ratelimit/weir/internal/linequeue"
)

// Bounds of the log of serve.
const (
	maxLogBuffer = 1 << 20     // bytes that wait for whoever reads the log
	maxLogLine   = 64 << 10    // bytes; what is longer is cut off
	lastLines    = time.Second // at the end, for what still waits
)

// processLog is what serve logs to: a queue that drops lines and counts them when they are not read, so that nothing in the
// process waits for the reader of its standard error. What is written to it is queued, too.
type processLog struct {
	*slog.Logger
	*linequeue.Queue
	dropped uint64 // as the last line about it said; only the queue's goroutine uses it
}

// newProcessLog starts a log that ends with Close. What libraries log goes there, too.
func newProcessLog(w io.Writer, level, format string) (*processLog, error) {
	l := &processLog{}
	write := func(lines []byte) error {
		_, err := w.Write(lines)
		return err
	}
	note, err := newLogger(writer(write), level, format)
	if err != nil {
		return nil, err
	}
	l.Queue = linequeue.New(linequeue.Options{
		MaxBytes: maxLogBuffer, MaxLine: maxLogLine, Write: write,
		Note: func(now linequeue.Stats, _ func([]byte) error) { l.note(note, now) },
	})
	if l.Logger, err = newLogger(l.Queue, level, format); err != nil {
		return nil, err
	}
	slog.SetDefault(l.Logger) // also of package log
	if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, l.Queue))
	}
	return l, nil
}

// note logs how many lines were dropped since the last such line, past the queue.
func (l *processLog) note(to *slog.Logger, now linequeue.Stats) {
	if dropped := now.FullBuffer + now.NotWritten; dropped != l.dropped {
		to.LogAttrs(context.Background(), slog.LevelWarn, "log lines were dropped: the log is read too slowly, or cannot be written",
			slog.Uint64("dropped", dropped-l.dropped))
		l.dropped = dropped
	}
}

// Close writes what waits, for a second at most.
func (l *processLog) Close() { l.Queue.Close(lastLines) }

func (l *processLog) stats() app.LogStats {
	now := l.Stats()
	return app.LogStats{FullBuffer: now.FullBuffer, NotWritten: now.NotWritten}
}

// writer is a function as an io.Writer.
type writer func([]byte) error

func (w writer) Write(text []byte) (int, error) { return len(text), w(text) }

func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, err
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: least, ReplaceAttr: durationAsText})), nil
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: least})), nil
}

// durationAsText shows a duration as "2s" in JSON, too, where it would be a number of nanoseconds.
func durationAsText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String())
	}
	return a
}
