package decide

import "github.com/weir-ratelimit/weir/pkg/limiter"

// fold finds what the decisions mean for the request and for each of its descriptors.
func (v *Verdict) fold() {
	v.Denied = v.refused || !limiter.Admitted(v.Hits, v.Decisions)
	v.quotaDenies = v.refused || limiter.QuotaDenies(v.Hits, v.Decisions)
	if !v.Denied {
		v.Wait = v.longestWait()
	}
	for i := range v.Statuses {
		v.foldStatus(&v.Statuses[i])
	}
}

func (v *Verdict) foldStatus(st *Status) {
	if st.first == st.last {
		st.Unlimited = st.Rule != nil && st.Rule.Unlimited
		return
	}
	tightest := st.first
	for j := st.first + 1; j < st.last; j++ {
		if isTighter(&v.Decisions[j], &v.Decisions[tightest]) {
			tightest = j
		}
	}
	d := &v.Decisions[tightest]
	st.Limit, st.Remaining, st.Reset, st.HasReset = v.Limits[tightest], d.Remaining, d.ResetAfter, v.Counted(tightest)
	if !d.Allowed && v.Hits[tightest].Mode != limiter.Shadow {
		st.Over = true
		switch p := v.Hits[tightest].Policy; {
		case d.RetryAfter != limiter.Never:
			st.Reset = d.RetryAfter
		case st.HasReset && p.Algorithm() != limiter.FixedWindow:
			st.Reset = p.Window()
		}
	}
}

// isTighter orders the limits of one descriptor: what does not fit, then what has less remaining, then what takes
// longer.
func isTighter(a, b *limiter.Decision) bool {
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	if a.Remaining != b.Remaining {
		return a.Remaining < b.Remaining
	}
	if a.RetryAfter != b.RetryAfter {
		return a.RetryAfter > b.RetryAfter
	}
	return a.ResetAfter > b.ResetAfter
}
