package reload

import "time"

// SetWatchEvery changes how often Watch looks without being told.
func SetWatchEvery(d time.Duration) { watchEvery = d }
