package descriptors

import (
	"strconv"
	"strings"
)

// memory is what a Set is made in: few large arrays instead of many small objects, since all of it is dropped together.
// With 100,000 rules that is what the collector's marks take, which requests wait for (docs/performance.md).
type memory struct {
	nodes      slab[Node]
	branches   slab[Branch]
	patterns   slab[Pattern]
	rules      slab[Rule]
	limits     slab[Limit]
	limitLists slab[*Limit]
	texts      texts

	patternLists slab[*Pattern]
}

// slab is memory for Ts.
type slab[T any] struct {
	free []T
	size int // of the last array
}

// next is a zero T.
func (s *slab[T]) next() *T { return &s.take(1)[0] }

// take returns n zero Ts side by side, and no room behind them.
func (s *slab[T]) take(n int) []T {
	if n > len(s.free) {
		s.size = min(max(2*s.size, 1), 64)
		s.free = make([]T, max(n, s.size))
	}
	taken := s.free[:n:n]
	s.free = s.free[n:]
	return taken
}

type texts struct{ last strings.Builder }

// source is "file:line", or the file alone if it has no lines.
func (t *texts) source(at Position) string {
	if at.Line == 0 {
		return at.File
	}
	return t.join(at.File, ":", strconv.Itoa(at.Line))
}

// join puts the parts together, in memory of its own.
func (t *texts) join(parts ...string) string {
	length := 0
	for _, part := range parts {
		length += len(part)
	}
	if t.last.Cap()-t.last.Len() < length {
		t.last.Reset()
		t.last.Grow(max(length, 4096))
	}
	from := t.last.Len()
	for _, part := range parts {
		t.last.WriteString(part)
	}
	return t.last.String()[from:]
}
