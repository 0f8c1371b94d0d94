package redisstore

import (
	"crypto/sha1" //nolint:gosec // see script
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

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
	redisCell
	warmingUp
)

// stepFiles are the Lua functions, and the files of the same names.
var stepFiles = [...]string{
	fixedWindow: "fixed_window", funnel: "funnel", intervalBucket: "interval_bucket",
	slidingWindow: "sliding_window", slidingLog: "sliding_log", redisCell: "redis_cell",
	warmingUp: "smooth_warming_up",
}

// quickSteps are those with a function for the hits that most are, in quick_*.lua.
var quickSteps = [...]step{fixedWindow, funnel}

// stepOf is the function that decides the policy's hits.
func stepOf(p *limiter.Policy) step {
	if p.Engine() == limiter.EngineRedisCell {
		return redisCell
	}
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

// script is a text that Redis runs, and the hash that it is known by once it has been sent.
type script struct {
	steps     stepSet
	text, sha string
}

// scripts puts together the script that a batch needs: it has the steps that were asked for so far, so that all
// batches soon share one, and none brings a step that no rule uses.
type scripts struct {
	current atomic.Pointer[script]
}

// with is the script with at least the steps of set.
func (c *scripts) with(set stepSet) (*script, error) {
	known := c.current.Load()
	if known != nil {
		if set&^known.steps == 0 {
			return known, nil
		}
		set |= known.steps
	}
	text, err := assemble(set)
	if err != nil {
		return nil, err
	}
	sum := sha1.Sum([]byte(text)) //nolint:gosec // Redis names scripts by SHA-1: an address, not a secret.
	next := &script{steps: set, text: text, sha: hex.EncodeToString(sum[:])}
	c.current.CompareAndSwap(known, next) // whoever loses adds its steps at its next batch
	return next, nil
}

// assemble puts the files together in the order in which they need each other.
func assemble(set stepSet) (string, error) {
	has := func(s step) bool { return set&(1<<s) != 0 }
	names := []string{"call"}
	if has(funnel) || has(warmingUp) {
		names = append(names, "funnel_state")
	}
	for _, s := range quickSteps {
		if has(s) {
			names = append(names, "quick_"+stepFiles[s])
		}
	}
	names = append(names, "prelude")
	for s, name := range stepFiles {
		if has(step(s)) {
			names = append(names, name)
		}
	}
	var b strings.Builder
	for _, name := range append(names, "frame") {
		text, err := files.ReadFile("lua/" + name + ".lua")
		if err != nil {
			return "", fmt.Errorf("lua step: %w", err)
		}
		b.Write(text)
		b.WriteByte('\n')
		if s := slices.Index(stepFiles[:], name); s >= 0 {
			b.WriteString("steps[" + strconv.Itoa(s) + "] = " + name + "\n")
		}
	}
	return b.String(), nil
}
