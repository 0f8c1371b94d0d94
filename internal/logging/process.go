// Package logging is the log of a process. It never waits for the reader of the log, and clients cannot flood it.
package logging

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/grpclog"
)

// lastLines is the maximum time for which Close writes waiting lines.
const lastLines = time.Second

// Process is the log of a process: a queue that drops and counts lines if the reader of standard error is too slow, so
// that logging never blocks. Write queues lines, too.
type Process struct {
	*slog.Logger
	*Queue
	dropped uint64 // total in the last line about dropped lines; used only by the queue's goroutine
}

// Config are the flags of the log.
type Config struct {
	LogLevel  string `env:"WEIR_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" help:"Lowest level to log: debug, info, warn or error."`
	LogFormat string `env:"WEIR_LOG_FORMAT" default:"text" enum:"text,json" help:"text or json."`
}

// NewProcess starts a log, which Close ends. It becomes the default of package slog and of gRPC.
func NewProcess(w io.Writer, c Config) (*Process, error) {
	l := &Process{}
	write := func(lines []byte) error {
		_, err := w.Write(lines)
		return err
	}
	note, err := c.newLogger(writer(write))
	if err != nil {
		return nil, err
	}
	l.Queue = NewQueue(write, func(now QueueStats) { l.note(note, now) })
	if l.Logger, err = c.newLogger(l.Queue); err != nil {
		return nil, err
	}
	slog.SetDefault(l.Logger) // also for package log
	grpcErrors.Store(l.Queue)
	logGRPC()
	return l, nil
}

// grpcErrors is the latest log. gRPC's logger must be set before gRPC is used, but inside Envoy a log may begin later.
var grpcErrors atomic.Pointer[Queue]

// logGRPC sends gRPC's errors to grpcErrors, unless the environment configures gRPC's own log.
var logGRPC = sync.OnceFunc(func() {
	if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" {
		toLast := writer(func(line []byte) error {
			_, err := grpcErrors.Load().Write(line)
			return err
		})
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, toLast))
	}
})

// note logs the number of lines dropped since the last note. It bypasses the queue.
func (l *Process) note(to *slog.Logger, now QueueStats) {
	if dropped := now.FullBuffer + now.NotWritten; dropped != l.dropped {
		to.LogAttrs(context.Background(), slog.LevelWarn, "log lines were dropped: the log is read too slowly, or cannot "+
			"be written",
			slog.Uint64("dropped", dropped-l.dropped))
		l.dropped = dropped
	}
}

// Close writes waiting lines, for at most lastLines.
func (l *Process) Close() { l.Queue.Close(lastLines) }

// writer makes a function an io.Writer.
type writer func([]byte) error

func (w writer) Write(text []byte) (int, error) { return len(text), w(text) }

func (c *Config) newLogger(w io.Writer) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return nil, err
	}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: least, ReplaceAttr: durationAsText})), nil
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: least})), nil
}

// durationAsText formats a duration as "2s" in JSON, instead of a number of nanoseconds.
func durationAsText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String())
	}
	return a
}
