package metrics

import (
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Decisions is how often a limit had each outcome, by decide.Outcome. It is nil for a limit that has no counts of its own.
func (ls *limits) Decisions(l *descriptors.Limit) []uint64 {
	c := ls.of(l)
	if c == nil || c.labels != labelsOf(l) {
		return nil
	}
	all := make([]uint64, len(decide.Outcomes()))
	for o := range all {
		all[o] = c.decisions[o].Load()
	}
	return all
}
