package rules

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func TestMain(m *testing.M) { casetest.FindLeaks(m) }
