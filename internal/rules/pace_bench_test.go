package rules

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
)

// askAddr has the address in the environment of a process that asks, beside the benchmark.
const askAddr = "WEIR_ASK_ADDR"

func TestMain(m *testing.M) {
	if addr := os.Getenv(askAddr); addr != "" {
		if err := ask(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// BenchmarkAnswers compiles 100,000 rules while another process asks 2,000 questions a second, and tells how long the
// answers take from the moment that a question was due: all in one go, and with pauses. Answers are echoes, so that
// only the wait for a CPU is seen. On a busy machine, run it with a priority of its own: chrt -f 5.
func BenchmarkAnswers(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(300)) // as in a process that loads rules
	var rules strings.Builder
	rules.WriteString("domain: d\ndescriptors:\n")
	for i := range 100_000 {
		fmt.Fprintf(&rules, "  - key: k%d\n    rate_limit: {requests_per_unit: 10, unit: hour}\n", i)
	}
	files := []rulefile.File{{Name: "rules.yaml", Data: []byte(rules.String())}}
	for _, mode := range []struct {
		name string
		rest func()
	}{{"in_one_go", nil}, {"with_pauses", new(pacer).rest}} {
		b.Run(mode.name, func(b *testing.B) {
			stop := startAsking(b)
			for b.Loop() {
				if _, err := rulefile.CompileFor(descriptors.Process{Rest: mode.rest}, files); err != nil {
					b.Fatal(err)
				}
			}
			took := stop()
			for _, q := range []struct {
				name string
				of   float64
			}{{"p50-ms", 0.5}, {"p99-ms", 0.99}, {"max-ms", 1}} {
				b.ReportMetric(float64(took[int(q.of*float64(len(took)-1))].Microseconds())/1000, q.name)
			}
		})
	}
}

// startAsking starts the process that asks and answers it. Stop returns what the answers took, sorted.
func startAsking(b *testing.B) (stop func() []time.Duration) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(conn, struct{ io.Reader }{conn}) //nolint:errcheck // until it is closed; without splice
		}
	}()
	child := exec.CommandContext(b.Context(), os.Args[0])
	child.Env = append(os.Environ(), askAddr+"="+l.Addr().String(), "GOMAXPROCS=1")
	child.Stderr = os.Stderr
	in, err1 := child.StdinPipe()
	out, err2 := child.StdoutPipe()
	if err := errors.Join(err1, err2, child.Start()); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() { // it has begun
		b.Fatal("the process that asks said nothing")
	}
	return func() (all []time.Duration) {
		_ = in.Close()
		for lines.Scan() {
			d, err := time.ParseDuration(lines.Text())
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, d)
		}
		if err := child.Wait(); err != nil || len(all) == 0 {
			b.Fatalf("asking: %v, %d answers", err, len(all))
		}
		slices.Sort(all)
		return all
	}
}

// ask asks until its input ends, and then writes what each answer took.
func ask(addr string) error {
	due := make(chan time.Time, 100_000)
	var mu sync.Mutex
	var all []time.Duration
	var asking sync.WaitGroup
	for range 16 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		asking.Go(func() {
			message := make([]byte, 64)
			for at := range due {
				_, err1 := conn.Write(message)
				_, err2 := io.ReadFull(conn, message)
				if err1 != nil || err2 != nil {
					return
				}
				mu.Lock()
				all = append(all, time.Since(at))
				mu.Unlock()
			}
		})
	}
	fmt.Println("asking")
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	for next := time.Now(); ; next = next.Add(500 * time.Microsecond) {
		select {
		case <-ended:
			close(due)
			asking.Wait()
			for _, d := range all {
				fmt.Println(d)
			}
			return nil
		case <-time.After(time.Until(next)):
			due <- next
		}
	}
}
