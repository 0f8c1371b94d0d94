package reload

import "time"

// SetWatchEvery sets the interval at which Watch lists the files without an event.
func SetWatchEvery(d time.Duration) { watchEvery = d }
