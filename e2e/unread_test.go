//go:build e2e

package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// memory returns what the kernel says of a process's memory in /proc/PID/status, in MiB.
func (s *weir) memory(t *testing.T, field string) (mib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			var kib int
			if _, err := fmt.Sscan(rest, &kib); err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatalf("no %s in:\n%s", field, text)
	return 0
}

// costs reports how much memory, in MiB, the process took at most while do ran, above what it took before. During do an
// honest client is answered all the time.
func (s *weir) costs(t *testing.T, atMost int, do func()) {
	t.Helper()
	honest := s.client(t)
	var slowest time.Duration
	ask := func() {
		start := time.Now()
		defer func() { slowest = max(slowest, time.Since(start)) }()
		if _, err := honest.ShouldRateLimit(t.Context(), question("client", "honest")); err != nil {
			t.Errorf("an honest client: %v", err)
		}
	}
	ask()
	before := s.memory(t, "VmRSS")
	done := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				ask()
			}
		}
	})
	do()
	close(done)
	asking.Wait()
	peak := s.memory(t, "VmHWM")
	t.Logf("%d MiB at rest, %d at most; the slowest honest answer took %s", before, peak, slowest)
	if peak-before > atMost {
		t.Errorf("it takes %d MiB more, want at most %d", peak-before, atMost)
	}
}

// withoutWindow is an HTTP/2 connection whose client never admits a byte of an answer.
type withoutWindow struct {
	*http2.Framer
	head  func(path string) []byte
	next  uint32
	ended chan struct{} // closed when the server has closed the connection
	wrote *bytes.Buffer
	conn  net.Conn
}

func (s *weir) withoutWindow(t *testing.T) *withoutWindow {
	t.Helper()
	conn, err := net.Dial("tcp", s.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	c := &withoutWindow{next: 1, ended: make(chan struct{}), wrote: &bytes.Buffer{}, conn: conn}
	_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second)) // the server may read slowly
	c.Framer = http2.NewFramer(c.wrote, conn)
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	c.head = func(path string) []byte {
		block.Reset()
		for _, h := range [][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":path", path},
			{":authority", "weir"},
			{"content-type", "application/grpc"},
			{"te", "trailers"},
		} {
			_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // into memory
		}
		return block.Bytes()
	}
	c.wrote.WriteString(http2.ClientPreface)
	_ = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) // into memory, as all below
	_ = c.flush()
	go func() {
		defer close(c.ended)
		_, _ = io.Copy(io.Discard, conn) // what needs no window
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-c.ended
	})
	return c
}

// flush sends what was written. The error is of a connection that the server has closed.
func (c *withoutWindow) flush() error {
	_, err := c.wrote.WriteTo(c.conn)
	return err
}

// ask sends messages of a new stream.
func (c *withoutWindow) ask(t *testing.T, path string, end bool, messages ...proto.Message) error {
	c.put(t, path, end, messages...)
	return c.flush()
}

// put has the next flush send messages of a new stream.
func (c *withoutWindow) put(t *testing.T, path string, end bool, messages ...proto.Message) {
	t.Helper()
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: c.head(path), EndHeaders: true})
	for i, m := range messages {
		text, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		text = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
		for len(text) > 0 {
			n := min(len(text), 16<<10)
			_ = c.WriteData(c.next, end && i == len(messages)-1 && n == len(text), text[:n])
			text = text[n:]
		}
	}
	c.next += 2
}

// flood has n streams on some connections ask without a window, again and again for a while.
func (s *weir) flood(t *testing.T, conns, n int, ask func(c *withoutWindow) error) {
	t.Helper()
	for until := time.Now().Add(casetest.Pick(time.Second, 3*time.Second)); time.Now().Before(until); {
		var all sync.WaitGroup
		for range conns {
			c := s.withoutWindow(t)
			all.Go(func() {
				defer c.conn.Close() //nolint:errcheck // the server may have closed it
				for range n / conns {
					if ask(c) != nil {
						return // it was cut off
					}
				}
				select {
				case <-c.ended:
				case <-time.After(time.Second):
				}
			})
		}
		all.Wait()
	}
}

// Answers of gRPC reflection that wait for the client's window are bounded.
func TestReflectionThatNobodyReads(t *testing.T) {
	s := startWeir(t, ruleFile(t, "domain: shop\ndescriptors: [{key: client, rate_limit: {requests_per_unit: 1000000, unit: day}}]\n"))
	question := &reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: "envoy.service.ratelimit.v3.RateLimitService",
		},
	}
	s.costs(t, 100, func() {
		s.flood(t, 4, 4000, func(c *withoutWindow) error {
			return c.ask(t, reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName, false,
				question, question, question, question)
		})
	})
}

// repeated is a request with n descriptors.
func repeated(n int) *pb.RateLimitRequest {
	q := &pb.RateLimitRequest{Domain: "shop"}
	for range n {
		q.Descriptors = append(q.Descriptors, question("a", "b").GetDescriptors()...)
	}
	return q
}

// Complete small requests that wait for a CPU or for their turn are bounded, and so are their answers.
func TestSmallRequestsThatWait(t *testing.T) {
	s := startWeir(t, ruleFile(t, "domain: shop\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 1000000, unit: day}}]\n"))
	small := repeated(128)
	s.costs(t, 400, func() {
		s.flood(t, 100, 100, func(c *withoutWindow) error {
			for range 1000 {
				c.put(t, pb.RateLimitService_ShouldRateLimit_FullMethodName, true, small)
			}
			return c.flush()
		})
	})
}

// Answers to complete requests that wait for the client's window are bounded.
func TestDecisionsThatNobodyReads(t *testing.T) {
	s := startWeir(t, ruleFile(t, "domain: shop\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 1000000, unit: day}}]\n"),
		"--max-descriptors", "2048", "--max-counters", "4096")
	large := repeated(2048)
	s.costs(t, 400, func() {
		s.flood(t, 4, 2000, func(c *withoutWindow) error {
			return c.ask(t, pb.RateLimitService_ShouldRateLimit_FullMethodName, true, large)
		})
	})
}

// manyRules is a file with so many rules.
func manyRules(t *testing.T, n int) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("domain: shop\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&text, "  - {key: client, value: c%d, rate_limit: {requests_per_unit: 100, unit: day}}\n", i)
	}
	text.WriteString("  - {key: client, value: honest, rate_limit: {requests_per_unit: 100000, unit: day}}\n")
	return ruleFile(t, text.String())
}

// use has each rule of manyRules decide a request, so that it has metrics and a history.
func (s *weir) use(t *testing.T, n int) {
	t.Helper()
	client := s.client(t)
	for from := 0; from < n; from += 100 {
		q := &pb.RateLimitRequest{Domain: "shop"}
		for i := range 100 {
			q.Descriptors = append(q.Descriptors, question("client", fmt.Sprint("c", from+i)).GetDescriptors()...)
		}
		if _, err := client.ShouldRateLimit(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
}

// unread asks a page and reads nothing of the answer.
func (s *weir) unread(t *testing.T, path string) {
	t.Helper()
	conn, err := net.Dial("tcp", s.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: weir\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
}

// HTTP answers that nobody reads are bounded.
func TestPagesThatNobodyReads(t *testing.T) {
	s := startWeir(t, manyRules(t, 1000))
	s.use(t, 1000)
	proctest.Eventually(t, "a history", func() bool {
		_, text := s.Page("/rules?n=1000&history=true")
		return strings.Contains(text, "last_hour")
	})
	s.costs(t, 100, func() {
		for range 3 {
			for i := range 100 {
				s.unread(t, []string{"/rules?n=1000&history=true", "/metrics", "/history"}[i%3])
			}
			proctest.Eventually(t, "an honest page of rules", func() bool {
				resp, err := http.Get("http://" + s.HTTP + "/rules?n=10")
				if err != nil {
					return false
				}
				defer resp.Body.Close() //nolint:errcheck // only read from
				_, err = io.Copy(io.Discard, resp.Body)
				return err == nil && resp.StatusCode == http.StatusOK
			})
		}
	})
}

// Clients that do not read their scrape do not delay those who do.
func TestScrapesThatNobodyReads(t *testing.T) {
	s := startWeir(t, manyRules(t, 6000))
	s.use(t, 6000)
	scrape := func() time.Duration {
		start := time.Now()
		if status, _ := s.Page("/metrics"); status != "200 OK" {
			t.Errorf("an honest scrape: %s", status)
		}
		return time.Since(start)
	}
	quiet := scrape()
	for range 30 {
		s.unread(t, "/metrics")
	}
	for range 5 {
		took := scrape()
		t.Logf("an honest scrape takes %s, before the others %s", took, quiet)
		if took > max(5*time.Second, 5*quiet) {
			t.Errorf("an honest scrape takes %s, before the others %s", took, quiet)
		}
	}
}
