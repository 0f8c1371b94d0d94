// Package testdata starts goroutines, for TestGoroutinesOf.
package testdata

func start() {
	go bare()
	go func() { work() }()
	wait.Go(bare)
	time.AfterFunc(0, func() { work() })

	panics.Go("work", bare)
	go panics.Restart(nil, "work", bare)
	go func() { panics.Catch("work", bare) }()
	go func() { defer func() { recover() }() }()
	wait.Go(func() { panics.Catch("work", bare) })
	go x.good()
	time.AfterFunc(0, good)
}

func bare() { work() }

func good() { panics.Catch("work", work) }
