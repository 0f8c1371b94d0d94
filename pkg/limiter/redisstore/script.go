package redisstore

import (
	"crypto/sha1" //nolint:gosec // the name under which Redis keeps a script
	"embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

//go:embed lua/*.lua
var files embed.FS

// step is an index in stepFiles.
type step int

// stepFiles are the Lua functions, and the files of the same names.
var stepFiles = [...]string{"fixed_window", "funnel", "interval_bucket", "sliding_window", "sliding_log"}

// stepOf is the function that decides the policy's hits.
func stepOf(p *limiter.Policy) step {
	switch p.Algorithm() {
	case limiter.FixedWindow:
		return 0
	case limiter.SlidingWindow:
		return 3
	case limiter.SlidingLog, limiter.Concurrency:
		return 4
	case limiter.TokenBucket:
		if p.Refill() == limiter.RefillInterval {
			return 2
		}
	default:
	}
	return 1
}

// stepSet has bit 1<<s set for step s.
type stepSet uint32

// script is one Lua script and the SHA-1 that Redis knows it by.
type script struct {
	text, sha string
}

// scripts puts together the script for a set of steps, so that a request brings only the steps that it
// needs. There are at most as many scripts as sets of steps that meet in one request.
type scripts struct {
	bySet sync.Map // stepSet -> *script
}

// of is the script for the steps of set.
func (c *scripts) of(set stepSet) (*script, error) {
	if known, ok := c.bySet.Load(set); ok {
		if sc, ok := known.(*script); ok {
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

func assemble(set stepSet) (*script, error) {
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
	sum := sha1.Sum([]byte(b.String())) //nolint:gosec // as above
	return &script{text: b.String(), sha: hex.EncodeToString(sum[:])}, nil
}
