package limiter

// Funnel is the leaky bucket as a meter (GCRA): at most Burst hits are in it, and it leaks Limit hits a Window.
const Funnel Algorithm = 2

// funnel is a meter as it is.
type funnel struct{ meter }

func newFunnel(in *Params) (algorithm, error) {
	f := &funnel{newMeter(in)}
	in.Burst = orDefault(in.Burst, in.Limit)
	return f, f.holdBurst(in)
}

func (f *funnel) traits() traits {
	t := f.meter.traits()
	t.cacheable = f.denied == ChargeNone
	return t
}
