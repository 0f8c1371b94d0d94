package guard

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A late process is not evidence of a silent store.
func TestBreakerOfALateProcess(t *testing.T) {
	breaking(t, func(t *testing.T, p *patient, b breakerStore) {
		p.fail(fmt.Errorf("%w: redis: %w", limiter.ErrUnavailable, limiter.ErrLate))
		for range 100 {
			if err := ask(b, 1); !errors.Is(err, limiter.ErrLate) || b.Open() != 0 {
				t.Fatalf("%v, open %d", err, b.Open())
			}
		}
	})
}
