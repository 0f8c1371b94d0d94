package limiter_test

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func TestMain(m *testing.M) { casetest.Main(m, 300) }
