package store

import (
	"errors"
	"strings"
	"testing"
)

// TestReplyBoundsFollow: however replies come in pieces, what a Redis replies passes, each reply has the whole of the
// bounds, and what announces too much is found at the byte that completes it.
func TestReplyBoundsFollow(t *testing.T) {
	var fine strings.Builder
	for range 3 {
		fine.WriteString("+OK\r\n:12\r\n-ERR no\r\n$-1\r\n$0\r\n\r\n$5\r\na\r\nbc\r\n*-1\r\n*0\r\n_\r\n")
		fine.WriteString("*4\r\n$3\r\nabc\r\n*2\r\n:1\r\n$-1\r\n*1\r\n*1\r\n*0\r\n$2\r\n\r\n\r\n%1\r\n+a\r\n+b\r\n")
		fine.WriteString(strings.Repeat("*1\r\n", maxReplyDepth) + ":1\r\n")
		fine.WriteString("*2\r\n$60000\r\n" + strings.Repeat("*9999999999\r\n"[:12], 5000) + "\r\n+" +
			strings.Repeat("x", maxReplyLine-3) + "\r\n")
	}
	for _, size := range []int{1, 2, 3, 7, 31, 4096, fine.Len()} {
		var r replyBounds
		for rest := fine.String(); rest != ""; {
			n := min(size, len(rest))
			if err := r.follow([]byte(rest[:n])); err != nil {
				t.Fatalf("in pieces of %d bytes, %d before the end: %v", size, len(rest), err)
			}
			rest = rest[n:]
		}
		if r != (replyBounds{head: r.head}) {
			t.Fatalf("in pieces of %d bytes: in the midst of something: %+v", size, r)
		}
		bad := "$99999999\r\n"
		for i := range bad {
			err := r.follow([]byte(bad[i : i+1]))
			if last := i == len(bad)-1; (err != nil) != last || last && !errors.Is(err, errReply) {
				t.Fatalf("byte %d of %q: %v", i, bad, err)
			}
		}
	}
}

func BenchmarkReplyBounds(b *testing.B) {
	var r replyBounds
	reply := []byte("$40\r\n" + strings.Repeat("x", 40) + "\r\n")
	b.ReportAllocs()
	for b.Loop() {
		if err := r.follow(reply); err != nil {
			b.Fatal(err)
		}
	}
}
