//go:build e2e

package e2e

import (
	"os"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
)

func TestMain(m *testing.M) { os.Exit(partnertest.Share(m)) }
