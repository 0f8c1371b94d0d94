package store

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/flags"
)

var storeName = regexp.MustCompile("^[a-z0-9_]+$")

// Check validates the flags.
func (o *Options) Check(e *flags.Errors) {
	if o.Store != Memory {
		checkURL(e, "--store", o.Store)
	}
	e.Check(o.Store != Memory || len(o.NamedStores) == 0, "--named-store",
		"needs a Redis as --store, too, for the limits without store: NAME; add --store "+
			"redis://host:6379/0, or write this URL into --store and remove the name")
	if o.PerSecondStore != "" {
		e.Check(o.Store != Memory, "--per-second-store", "needs a Redis as --store, too, for all other limits")
		e.Check(o.NamedStores[PerSecond] == "", "--named-store",
			"%s is the name of --per-second-store; choose another name", PerSecond)
		checkURL(e, "--per-second-store", o.PerSecondStore)
	}
	for _, name := range slices.Sorted(maps.Keys(o.NamedStores)) {
		e.Check(storeName.MatchString(name), "--named-store", "a name must consist of a-z, 0-9 and _; write NAME=URL")
		checkURL(e, strings.TrimSpace("--named-store "+storeName.FindString(name)), o.NamedStores[name])
	}
	if o.StoreTimeout != 0 { // 0 means the caller's deadline
		flags.Between(e, "--store-timeout", o.StoreTimeout, time.Millisecond, MaxTimeout)
	}
	flags.Between(e, "--fallback-replicas", o.FallbackReplicas, 1, 100_000)
	flags.Between(e, "--memory-max-counters", o.MemoryMaxCounters, 1, 1_000_000_000)
}

// checkURL never quotes the URL, which may have a password. Text that is not a store's name may be a password, too.
func checkURL(e *flags.Errors, flag, url string) {
	err := CheckURL(url)
	e.Check(err == nil, flag, "%w", err)
}
