package decide

import "github.com/weir-ratelimit/weir/pkg/limiter"

// fold combines the decisions into the verdict of the request and the status of each descriptor.
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
	tightest := st.first + limiter.Tightest(v.Decisions[st.first:st.last])
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
