package guard

// Reset is called after the store has forgotten the counter, by any process: permits that were charged to it are of a
// counter that is no more, so they are neither spent nor released to the new one. Those of a call or of a request that
// is under way meanwhile may be; with them no more passes than Leases' bound says of any span of time.
func (l *Leases) Reset(key string) {
	sh, _ := l.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.leases[key]
	if e == nil || e.permits == 0 {
		return
	}
	sh.stats.Permits -= e.permits
	sh.stats.Lost += uint64(e.permits) //nolint:gosec // above 0
	e.permits = 0
	e.grant++
}

// Permits are those of a counter on lease in this process. leased says whether it acquires permits in advance.
func (l *Leases) Permits(key string) (permits int64, leased bool) {
	sh, _ := l.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.leases[key]
	if e == nil {
		return 0, false
	}
	return e.permits, true
}
