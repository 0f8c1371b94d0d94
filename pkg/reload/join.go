package reload

import (
	"context"
	"errors"
	"sync"

	"github.com/weir-ratelimit/weir/pkg/panics"
)

// Join returns several sources as one: the files of the first, then those of the next. If one source cannot be read,
// the whole cannot. unwatched is called if a source cannot be watched; the watches of the others go on.
func Join(unwatched func(error), sources ...Source) Source {
	if len(sources) == 1 {
		return sources[0]
	}
	return &joined{sources, unwatched}
}

type joined struct {
	sources   []Source
	unwatched func(error)
}

func (j *joined) Read(ctx context.Context) (Snapshot, error) {
	var files []File
	var errs []error
	for _, source := range j.sources {
		got, err := source.Read(ctx)
		files, errs = append(files, got.Files...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return Snapshot{}, err
	}
	return NewSnapshot(files), nil
}

func (j *joined) Watch(ctx context.Context, changed chan<- struct{}) error {
	var all sync.WaitGroup
	for _, source := range j.sources {
		all.Go(func() {
			panics.Restart(ctx.Done(), "watch of rules", func() {
				if err := source.Watch(ctx, changed); err != nil && ctx.Err() == nil {
					j.unwatched(err)
				}
			})
		})
	}
	all.Wait()
	return nil
}
