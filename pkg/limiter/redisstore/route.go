package redisstore

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Route is a limiter.Hit's Route for this package. Another type with the same methods works, too.
type Route struct {
	// Store is the name of the store in the Group that has the counter. Empty means the first store.
	Store string
	// RedisCell lets the redis-cell module decide the hit with CL.THROTTLE, which is GCRA with a clock of nanoseconds. The
	// server must have loaded the module. The policy must be a Funnel, or a TokenBucket that starts full and refills
	// continuously, with a Window of whole seconds, at most one hit per microsecond, ChargeNone, and no Reserve. The key
	// must be UTF-8, and no counter without the module may have this key.
	RedisCell bool
}

// StoreName returns Store.
func (r Route) StoreName() string { return r.Store }

// UsesRedisCell returns RedisCell.
func (r Route) UsesRedisCell() bool { return r.RedisCell }

// check calls storekit.Check, and checks that the redis-cell module can decide the hits that name it. A key that is not
// UTF-8 would make the module (0.2.2) end the whole server.
func check(hits []limiter.Hit, out []limiter.Decision) error {
	if err := storekit.Check(hits, out); err != nil {
		return err
	}
	for i := range hits {
		if h := &hits[i]; limit.UsesRedisCell(h) && (!redisCellDecides(h.Policy) || !utf8.ValidString(h.Key)) {
			return fmt.Errorf("%w: hits[%d]: the redis-cell module supports only funnels and token buckets of whole seconds, "+
				"at most a hit a microsecond, that charge a denied request nothing and have no reserve, under keys of UTF-8; "+
				"use another policy or key, or another route", limiter.ErrInvalid, i)
		}
	}
	return nil
}

// redisCellDecides reports whether CL.THROTTLE can decide the limit.
func redisCellDecides(p *limiter.Policy) bool {
	in := p.Params()
	return (in.Algorithm == limiter.Funnel || in.Algorithm == limiter.TokenBucket) &&
		!in.StartsEmpty && !in.RefillsAtOnce && in.ChargeDenied == limiter.ChargeNone && in.Reserve == 0 &&
		in.Window%time.Second == 0 && in.Limit <= in.Window.Microseconds()
}

// argsOf returns the numbers that the hit's Lua step reads.
func argsOf(h *limiter.Hit) []int64 {
	if limit.UsesRedisCell(h) {
		in := h.Policy.Params()
		return []int64{in.Limit, int64(in.Window / time.Second), in.Burst}
	}
	return h.Policy.Core().Args()
}
