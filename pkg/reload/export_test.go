package reload

import "github.com/weir-ratelimit/weir/internal/fileread"

// ReadBy returns the source with a reader that gives up sooner.
func (p Files) ReadBy(r *fileread.Reader) Files {
	p.fileReader = r
	return p
}
