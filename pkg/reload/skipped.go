package reload

import (
	"context"

	"github.com/weir-ratelimit/weir/pkg/fileread"
)

// maxSkipped bounds what Skipped finds.
const maxSkipped = 1000

// Skipped are the regular files in and below the given directories that Read leaves out because of their names, but for those
// that begin with ".": a thousand at most, in the order of a walk. What cannot be listed is left out, as Read says so.
func (p Files) Skipped(ctx context.Context) []string {
	names, _ := fileread.Do(ctx, p.reader(), func(s *fileread.Session) ([]string, error) {
		var found skipped
		_ = walk(ctx, s, p.Paths, &found)
		return found.names, nil
	})
	return names
}

// skipped is the visitor that notes the names of files that are not read.
type skipped struct{ names []string }

func (*skipped) dir(string)            {}
func (*skipped) link(string)           {}
func (*skipped) file(walkedFile) error { return nil }

func (s *skipped) other(name string) {
	if len(s.names) < maxSkipped {
		s.names = append(s.names, name)
	}
}
