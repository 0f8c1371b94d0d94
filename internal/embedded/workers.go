package embedded

import (
	"os"
	"runtime"
	"sync"
)

// maxWorkers bounds what Envoy says of itself.
const maxWorkers = 1024

var workersOnce sync.Once

// SetWorkers says how many threads of Envoy's call Weir; only the first call counts. A thread keeps one of Go's
// processors (GOMAXPROCS) after it has left Go, until Go's monitor takes it back: if all are kept so, each goroutine
// waits for the monitor, which wakes every 20 us and costs more than the goroutines. So each worker gets one more,
// unless the environment says how many there are. See docs/adr/0074.
func SetWorkers(n int) {
	workersOnce.Do(func() {
		if n > 0 && os.Getenv("GOMAXPROCS") == "" {
			runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + min(n, maxWorkers))
		}
	})
}
