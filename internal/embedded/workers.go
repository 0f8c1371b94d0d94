package embedded

import (
	"os"
	"runtime"
	"sync"
)

// maxWorkers bounds the number of workers that Envoy reports.
const maxWorkers = 1024

var workersOnce sync.Once

// SetWorkers sets the number of Envoy threads that call Weir; only the first call counts. A thread that returns from Go
// keeps its processor (GOMAXPROCS) until Go's monitor retakes it. If threads keep all processors, goroutines wait for
// the monitor, which wakes every 20 us and costs more than the goroutines. So SetWorkers adds a processor per worker,
// unless the environment sets GOMAXPROCS. See docs/adr/0074.
func SetWorkers(n int) {
	workersOnce.Do(func() {
		if n > 0 && os.Getenv("GOMAXPROCS") == "" {
			runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + min(n, maxWorkers))
		}
	})
}
