package reload

import "context"

// maxSkipped bounds what Skipped finds.
const maxSkipped = 1000

// Skipped are the regular files in and below the given directories that Read leaves out because of their names, but for those
// that begin with ".": a thousand at most, in the order of a walk. What cannot be listed is left out, as Read says so.
func (p Files) Skipped(ctx context.Context) []string {
	var found skipped
	_ = walk(ctx, p.Paths, &found)
	return found.names
}

// skipped is the visitor that notes the names of files that are not read.
type skipped struct{ names []string }

func (*skipped) dir(string)        {}
func (*skipped) link(string)       {}
func (*skipped) file(string) error { return nil }

func (s *skipped) other(name string) {
	if len(s.names) < maxSkipped {
		s.names = append(s.names, name)
	}
}
