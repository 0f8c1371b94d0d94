package cli

import (
	"context"
	"fmt"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// readRules reads rule files as serve does, - being standard input. Its error says that a path cannot be read: it is of
// the command line.
func readRules(ctx context.Context, from streams, command, flag string, paths ...string) ([]reload.File, error) {
	fail := func(err error) ([]reload.File, error) {
		if flag != "" {
			err = fmt.Errorf("%s: %w", flag, err)
		}
		return nil, &usageError{err: err, command: command}
	}
	files, err := rules.ReadFiles(ctx, from.in, paths...)
	if err != nil {
		return fail(err)
	}
	return files, nil
}
