// Package testdata starts goroutines, for TestGoroutinesOf.
package testdata

import (
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
)

type x struct{}

var wait sync.WaitGroup

// Start starts goroutines. The first four do not catch panics.
func Start(x x) {
	go bare()
	go func() { bare() }()
	wait.Go(bare)
	time.AfterFunc(0, func() { bare() })

	panics.Go("work", bare)
	go panics.Restart(nil, "work", bare)
	go func() { panics.Catch("work", bare) }()
	go func() { defer func() { _ = recover() }() }()
	wait.Go(func() { panics.Catch("work", bare) })
	go x.good()
	time.AfterFunc(0, good)
}

func bare() {}

func good() { panics.Catch("work", bare) }

func (x) good() { panics.Catch("work", bare) }

// calledByC does not catch panics.
//
//export calledByC
func calledByC() { bare() }

//export alsoCalledByC
func alsoCalledByC() { panics.Catch("work", bare) }

//export calledByCToo
func calledByCToo() { good() }
