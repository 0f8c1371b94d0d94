package reload

import "time"

// SetWatchEvery changes how often Watch looks without an event.
func SetWatchEvery(d time.Duration) { watchEvery = d }
