package app

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// An App that never runs is closed by Close, and one that could not be made by New: goroutines (TestMain looks)
// and the addresses.
func TestNewWithoutRun(t *testing.T) {
	o := redisOptions(t, redistest.Start(t), rulesOf("1"))
	o.Log = slog.New(slog.DiscardHandler)
	a, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	o.GRPCAddr = a.GRPCAddr()
	if _, err := New(t.Context(), o); err == nil ||
		!strings.HasPrefix(err.Error(), "--grpc-addr: listen tcp 127.0.0.1:") || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("a second process on the same address: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := a.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
	l, err := net.Listen("tcp", o.GRPCAddr)
	if err != nil {
		t.Fatalf("the address is not free after Close: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// deaf is a store that ignores the end of its context.
type deaf struct {
	take.Stage
	entered chan struct{}
	open    chan struct{}
}

func (d *deaf) Before(*take.Call) bool {
	close(d.entered)
	<-d.open
	return true
}

// A request that not even a cancelled context ends does not keep Run from ending, nor Close; the error says so.
func TestStopEndsWhateverHangs(t *testing.T) {
	t.Parallel()
	o := options(t, rulesOf("1"))
	o.StopTimeout, o.StoreTimeout = time.Millisecond, time.Millisecond
	d := &deaf{entered: make(chan struct{}), open: make(chan struct{})}
	o.Stages = func([]string) []take.Stage { return []take.Stage{d} }
	p := start(t, o)
	answer := make(chan string, 1)
	go func() { answer <- p.ask("me") }()
	<-d.entered
	p.stop()
	select {
	case <-p.ended:
	case <-time.After(o.StopBound()):
		t.Fatal("the process does not end")
	}
	for _, want := range []string{
		"requests still run 3s after their connections were closed", "parts still running 3.001s after the stop: gRPC server",
		"gRPC server: still not closed",
	} {
		if p.err == nil || !strings.Contains(p.err.Error(), want) {
			t.Errorf("Run and Close return %v, want %q", p.err, want)
		}
	}
	p.err = nil
	close(d.open)
	<-answer
}
