package rulefile_test

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/longtest"
)

func TestMain(m *testing.M) { longtest.Main(m, 100) }
