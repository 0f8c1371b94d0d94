package descriptors

import (
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// tooLongPath is the path of the rule for values that are too long.
const tooLongPath = "(value too long to match)"

// tooLongKey stands for the entries in the key of that rule's only counter. No entry's key has a raw *.
const tooLongKey = "|*#too_long="

// newLongRule makes a domain's rule for values that are too long to decide which pattern they match: it denies, also
// while the store does not answer, since a client could else avoid any pattern's limit by a long value.
func newLongRule(domain string, process *Process) (*Rule, error) {
	params := limiter.Params{Algorithm: limiter.FixedWindow, Limit: 0, Window: time.Minute}
	policy, err := limiter.NewPolicy(params)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tooLongPath, err)
	}
	r := &Rule{Domain: domain, Path: tooLongPath, process: process, tooLong: true, Mode: process.mode(false, false)}
	l := &Limit{
		ID: -1, Policy: policy, Unit: Minute, UnitMultiplier: 1, OnStoreFailure: Deny, Rule: r, params: &params,
		keyStart: counter{algorithm: params.Algorithm}.keyStart(domain) + tooLongKey,
	}
	r.Limits = []*Limit{l}
	return r, nil
}

// IsTooLong reports whether the rule is the one that Domain.Match returns for a value that is longer than
// MaxPatternValue, if what Weir reads of the value does not decide which pattern it matches, and one that it may
// match would deny something. The rule has one limit, of 0 requests a minute.
func (r *Rule) IsTooLong() bool { return r.tooLong }
