package descriptors

// Reservation is `reservation` in a rule file: a request is charged an estimate at its start, and corrected to its real
// cost at its end. Both numbers are in hits.
type Reservation struct {
	Estimate, AtMost int64 // with AtMost 0, the larger of Estimate and half of the capacity
	// EndsByCost, `ends: cost`, makes a cost above 1 the end of a request and a cost of 1 its start, for control planes
	// that send no token.
	EndsByCost bool
	At         Position
}

// Charge returns what a request is charged at its start if it may cost want hits. Charges have at most 34 different
// values, so that many requests of a key share a cached denial.
func (r *Reservation) Charge(want int64) int64 {
	step := max(1, (r.AtMost+31)/32)
	more := max(0, min(want, r.AtMost)-r.Estimate)
	return min(r.AtMost, r.Estimate+(more+step-1)/step*step)
}
