package reload

import (
	"context"

	"github.com/weir-ratelimit/weir/pkg/fileread"
)

// maxSkipped bounds how many files Skipped returns.
const maxSkipped = 1000

// Skipped returns the regular files in and below the given directories that Read skips because of their names, at most
// a thousand, in the order of a walk. It leaves out names that begin with ".", and directories that cannot be listed,
// which Read reports.
func (p Files) Skipped(ctx context.Context) []string {
	names, _ := fileread.Do(ctx, p.reader(), func(s *fileread.Session) ([]string, error) {
		var found skipped
		_ = walk(ctx, s, p, p.Paths, &found)
		return found.names, nil
	})
	return names
}

// skipped is a visitor that collects the names of files that Read skips.
type skipped struct{ names []string }

func (*skipped) dir(string)            {}
func (*skipped) link(string)           {}
func (*skipped) file(walkedFile) error { return nil }

func (s *skipped) other(name string) {
	if len(s.names) < maxSkipped {
		s.names = append(s.names, name)
	}
}
