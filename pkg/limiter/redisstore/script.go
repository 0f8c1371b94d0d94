package redisstore

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

//go:embed lua/*.lua
var files embed.FS

// step is an index in stepFiles.
type step int

const (
	fixedWindow step = iota
	funnel
	intervalBucket
	slidingWindow
	slidingLog
	warmingUp
)

// stepFiles are the Lua functions, and the files of the same names.
var stepFiles = [...]string{
	fixedWindow: "fixed_window", funnel: "funnel", intervalBucket: "interval_bucket",
	slidingWindow: "sliding_window", slidingLog: "sliding_log",
	warmingUp: "smooth_warming_up",
}

// stepOf is the function that decides the policy's hits.
func stepOf(p *limiter.Policy) step {
	switch p.Algorithm() {
	case limiter.FixedWindow:
		return fixedWindow
	case limiter.SlidingWindow:
		return slidingWindow
	case limiter.SlidingLog, limiter.Concurrency:
		return slidingLog
	case limiter.SmoothWarmingUp:
		return warmingUp
	case limiter.TokenBucket:
		if p.Refill() == limiter.RefillInterval {
			return intervalBucket
		}
	default:
	}
	return funnel
}

// stepSet has bit 1<<s set for step s.
type stepSet uint32

// scripts puts together the script for a set of steps, so that a request brings only the steps that it
// needs. There are at most as many scripts as sets of steps that meet in one request.
type scripts struct {
	bySet sync.Map // stepSet -> *redis.Script
}

// of is the script for the steps of set.
func (c *scripts) of(set stepSet) (*redis.Script, error) {
	if known, ok := c.bySet.Load(set); ok {
		if sc, ok := known.(*redis.Script); ok {
			return sc, nil
		}
	}
	sc, err := assemble(set)
	if err != nil {
		return nil, err
	}
	c.bySet.Store(set, sc)
	return sc, nil
}

func assemble(set stepSet) (*redis.Script, error) {
	var b strings.Builder
	add := func(name string) error {
		text, err := files.ReadFile("lua/" + name + ".lua")
		if err != nil {
			return fmt.Errorf("lua step: %w", err)
		}
		b.Write(text)
		b.WriteByte('\n')
		return nil
	}
	if err := add("prelude"); err != nil {
		return nil, err
	}
	for i, name := range stepFiles {
		if set&(1<<i) == 0 {
			continue
		}
		if err := add(name); err != nil {
			return nil, err
		}
		b.WriteString("steps['" + strconv.Itoa(i) + "'] = " + name + "\n")
	}
	if err := add("frame"); err != nil {
		return nil, err
	}
	return redis.NewScript(b.String()), nil
}
