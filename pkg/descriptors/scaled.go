package descriptors

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// maxNumber is the largest number of requests_per_unit and its like: what Envoy's own 32-bit field can carry.
const maxNumber = math.MaxUint32

// Scaled is the limit with its numbers (requests_per_unit, burst, segment_cap) times factor, rounded down, on the same
// counters: what was used is kept, as after an edit of the rule. The error says why there is no such limit.
func (l *Limit) Scaled(factor float64) (*Limit, error) {
	fail := func(err error) (*Limit, error) {
		return nil, fmt.Errorf("limit %s of %s times %g: %w", l.label(), l.Rule.Path, factor, err)
	}
	if l.params.Limit == 0 {
		return fail(errors.New("it lets nothing pass (requests_per_unit: 0), which no factor changes"))
	}
	scaled, params := *l, *l.params
	scaled.params = &params
	var errs []error
	for _, part := range []struct {
		name string
		n    *int64
	}{
		{"requests_per_unit", &params.Limit}, {"burst", &params.Burst}, {"segment_cap", &params.SegmentCap},
	} {
		if *part.n == 0 {
			continue // not given
		}
		// What is a whole number but for the last bit of a double, as 3 x 0.333..., is meant as one.
		n := math.Floor(float64(*part.n)*factor + 1e-6)
		if n < 1 || n > maxNumber || math.IsNaN(n) {
			errs = append(errs, fmt.Errorf("%s would be %g; it must be between 1 and %d", part.name, n, int64(maxNumber)))
			continue
		}
		*part.n = int64(n)
	}
	if err := errors.Join(errs...); err != nil {
		return fail(err)
	}
	var err error
	placement := l.Placement()
	if scaled.Policy, err = placement.newPolicy(params); err == nil {
		err = scaled.share()
	}
	if err != nil {
		return fail(PolicyError(err))
	}
	return &scaled, nil
}

// label is how people tell the rule's limits apart.
func (l *Limit) label() string {
	if l.Name != "" {
		return l.Name
	}
	if position := l.Position(); position > 0 {
		return strconv.Itoa(position)
	}
	return "of a request"
}

// Position is that of the limit among its rule's, from 1; 0 for a limit that a request brings along.
func (l *Limit) Position() int {
	return 1 + slices.IndexFunc(l.Rule.Limits, func(of *Limit) bool { return of.ID == l.ID })
}

// share sets the process's share of the limit, if it is for Local to count. A limit that has a policy has a share.
func (l *Limit) share() (err error) {
	l.Local = nil
	if l.OnStoreFailure == Local {
		placement := l.Placement()
		l.Local, err = placement.completed(*l.params).Share(int64(l.Rule.process.Replicas))
	}
	return err
}
