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

// steps names the Lua function, and the file of the same name, that is an algorithm's step.
var steps = map[limiter.Algorithm]string{
	limiter.FixedWindow:   "fixed_window",
	limiter.Funnel:        "funnel",
	limiter.TokenBucket:   "funnel",
	limiter.SlidingWindow: "sliding_window",
	limiter.SlidingLog:    "sliding_log",
}

// script is one Lua script and the SHA-1 that Redis knows it by.
type script struct {
	text, sha string
}

// scripts puts together the script for a set of algorithms, so that a request brings only the steps that it
// needs. There are at most as many scripts as sets of algorithms that meet in one request.
type scripts struct {
	bySet sync.Map // algorithmSet -> *script
}

// algorithmSet has bit 1<<a set for algorithm a.
type algorithmSet uint32

func (s algorithmSet) with(a limiter.Algorithm) algorithmSet { return s | 1<<a }

func (s algorithmSet) has(a limiter.Algorithm) bool { return s&(1<<a) != 0 }

// of is the script for the algorithms of set.
func (c *scripts) of(set algorithmSet) (*script, error) {
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

func assemble(set algorithmSet) (*script, error) {
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
	added := map[string]bool{}
	for a := limiter.FixedWindow; a <= limiter.SlidingLog; a++ {
		name := steps[a]
		if !set.has(a) {
			continue
		}
		if !added[name] {
			if err := add(name); err != nil {
				return nil, err
			}
			added[name] = true
		}
		b.WriteString("steps['" + strconv.Itoa(int(a)) + "'] = " + name + "\n")
	}
	if err := add("frame"); err != nil {
		return nil, err
	}
	sum := sha1.Sum([]byte(b.String())) //nolint:gosec // as above
	return &script{text: b.String(), sha: hex.EncodeToString(sum[:])}, nil
}
