//go:build e2e

package e2e

import (
	"os"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/chrometest"
)

func TestMain(m *testing.M) { os.Exit(chrometest.Share(m)) }
