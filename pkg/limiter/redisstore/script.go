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

// stepID is the number of a Lua step, the function that decides an algorithm's hits: an index in stepFiles.
type stepID int

// stepFiles lists the files that define a step. The function of a step has the name of its file.
var stepFiles = stepNames()

const redisCell = "redis_cell" // name of the step for hits that the redis-cell module decides

const (
	funnelState = "funnel_state" // file of a helper, which only some steps need
	quick       = "quick_"       // prefix of the file with a step's function for the most frequent hits
)

// parts lists the files that define no step.
var parts = []string{"call", "alone", "batch", "steps", "slowly", "frame", funnelState}

func stepNames() (names []string) {
	all, _ := files.ReadDir("lua") // cannot fail: the folder is embedded
	for _, f := range all {
		name := strings.TrimSuffix(f.Name(), ".lua")
		if !slices.Contains(parts, name) && !strings.HasPrefix(name, quick) {
			names = append(names, name)
		}
	}
	return names
}

func stepOf(h *limiter.Hit) stepID {
	if limit.UsesRedisCell(h) {
		return stepID(slices.Index(stepFiles, redisCell))
	}
	return stepID(slices.Index(stepFiles, h.Policy.Core().Script))
}

// stepSet is a set of steps: bit 1<<s for step s.
type stepSet uint32

// script is the text of a Lua script, and its SHA-1, by which Redis knows a script that it has received.
type script struct {
	steps     stepSet
	text, sha string
}

// scripts assembles the script for each batch, from the steps that any batch has needed so far. So all batches soon
// share one script, which has only the steps that rules use.
type scripts struct {
	current atomic.Pointer[script]
}

// with returns a script with at least the steps of set.
func (c *scripts) with(set stepSet) *script {
	known := c.current.Load()
	if known != nil {
		if set&^known.steps == 0 {
			return known
		}
		set |= known.steps
	}
	text := assemble(set)
	sum := sha1.Sum([]byte(text)) //nolint:gosec // Redis names scripts by their SHA-1, which need not be secret
	next := &script{steps: set, text: text, sha: hex.EncodeToString(sum[:])}
	c.current.CompareAndSwap(known, next) // if another batch was first, the next batch adds these steps
	return next
}

// assemble concatenates the files in the order in which they need each other, after a constant with the number of each
// step: FUNNEL for funnel.lua. The function slowly defines everything that only slow requests need.
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

// lua returns the text of a file in lua/, or "" if the file does not exist.
func lua(name string) string {
	text, err := files.ReadFile("lua/" + name + ".lua")
	if err != nil {
		return ""
	}
	return string(text) + "\n"
}

// decider identifies a packed policy: a policy, and whether the redis-cell module decides its hits.
type decider struct {
	policy    *limiter.Policy
	redisCell bool
}

// packedPolicy is a policy in the form that the script reads; see lua/call.lua.
type packedPolicy struct {
	by   decider
	step stepID
	text string
}

// packed returns the packed policy of the hit for a batch at time now, in microseconds since the Unix epoch. The policy
// caches it, unless it has calendar windows, because their edges depend on the time.
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
	core := by.policy.Core()
	numbers := slices.Concat(argsOf(h), edges,
		[]int64{core.Reserve, int64(step), int64(by.policy.Params().ChargeDenied), core.Largest})
	text := make([]byte, 0, len(numbers)*double)
	for _, v := range numbers {
		text = appendDouble(text, v)
	}
	return &packedPolicy{by: by, step: step, text: string(text)}
}
