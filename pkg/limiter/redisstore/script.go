package redisstore

import (
	"crypto/sha1" //nolint:gosec // see script
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

//go:embed lua/*.lua
var files embed.FS

// step is the number of a Lua function that decides an algorithm's hits: an index in stepFiles.
type stepID int

// stepFiles are the files that define a step, each a function of the file's name: all but the script's other parts.
var stepFiles = stepNames()

const redisCell = "redis_cell" // the step of hits that the module decides

const (
	funnelState = "funnel_state" // a helper of the steps that name it
	quick       = "quick_"       // before a step's name: a function for the hits that most are
)

// parts are the files that define no step: those of every script, and the helper.
var parts = []string{"call", "alone", "batch", "steps", "slowly", "frame", funnelState}

func stepNames() (names []string) {
	all, _ := files.ReadDir("lua") // of an embedded folder: always there
	for _, f := range all {
		name := strings.TrimSuffix(f.Name(), ".lua")
		if !slices.Contains(parts, name) && !strings.HasPrefix(name, quick) {
			names = append(names, name)
		}
	}
	return names
}

// stepOf is the step that decides the hit.
func stepOf(h *limiter.Hit) stepID {
	if limit.UsesRedisCell(h) {
		return stepID(slices.Index(stepFiles, redisCell))
	}
	return stepID(slices.Index(stepFiles, h.Policy.Core().Script))
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
func (c *scripts) with(set stepSet) *script {
	known := c.current.Load()
	if known != nil {
		if set&^known.steps == 0 {
			return known
		}
		set |= known.steps
	}
	text := assemble(set)
	sum := sha1.Sum([]byte(text)) //nolint:gosec // Redis names scripts by SHA-1: an address, not a secret.
	next := &script{steps: set, text: text, sha: hex.EncodeToString(sum[:])}
	c.current.CompareAndSwap(known, next) // whoever loses adds its steps at its next batch
	return next
}

// assemble puts the files together in the order in which they need each other, after the numbers that they know steps
// by: FUNNEL for funnel.lua. What only slow requests need is in a function of its own, slowly.
func assemble(set stepSet) string {
	var numbers, quicks, steps strings.Builder
	for s, name := range stepFiles {
		if set&(1<<s) == 0 {
			continue
		}
		fmt.Fprintf(&numbers, "local %s = %d\n", strings.ToUpper(name), s)
		fmt.Fprintf(&steps, "%ssteps[%d] = %s\n", lua(name), s, name)
		quicks.WriteString(lua(quick + name))
	}
	var helper string
	if strings.Contains(steps.String(), funnelState) {
		helper = lua(funnelState)
	}
	return numbers.String() + lua("call") + helper + quicks.String() + lua("alone") + lua("batch") +
		"local function slowly()\n" + lua("steps") + steps.String() + lua("slowly") + "return decide_slowly\nend\n" +
		lua("frame")
}

// lua is the text of a file in lua/, empty if there is none.
func lua(name string) string {
	text, err := files.ReadFile("lua/" + name + ".lua")
	if err != nil {
		return ""
	}
	return string(text) + "\n"
}

// decider is what the script needs to know of a hit's limit.
type decider struct {
	policy    *limiter.Policy
	redisCell bool
}

// packedPolicy is a policy as the script reads it, which lua/call.lua describes.
type packedPolicy struct {
	by   decider
	step stepID
	text string
}

// packed returns the hit's policy packed for a batch of now. The policy keeps it, unless it has windows, which change.
func packed(by decider, h *limiter.Hit, now int64) *packedPolicy {
	edges := limit.Edges(by.policy, now)
	if len(edges) > 0 {
		return packPolicy(by, h, edges)
	}
	kept := &by.policy.Core().Packed
	if p, ok := kept.Load().(*packedPolicy); ok && p.by == by {
		return p
	}
	p := packPolicy(by, h, nil)
	kept.Store(p)
	return p
}

func packPolicy(by decider, h *limiter.Hit, edges []int64) *packedPolicy {
	step := stepOf(h)
	numbers := slices.Concat(argsOf(h), edges,
		[]int64{int64(step), int64(by.policy.Params().ChargeDenied), by.policy.Core().Largest})
	text := make([]byte, 0, len(numbers)*double)
	for _, v := range numbers {
		text = appendDouble(text, v)
	}
	return &packedPolicy{by: by, step: step, text: string(text)}
}
