package reload

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
)

// File is one file's content. Name is the path as the user would write it, for messages.
type File struct {
	Name string
	Data []byte
	// Included reports that another file refers to this one: see Files.Includes.
	Included bool
}

// Source is where files come from.
type Source interface {
	// Read returns all files. Its error names the path that it could not read.
	Read(ctx context.Context) (Snapshot, error)
	// Watch sends on changed, without blocking, when Read may return something new: once as soon as it watches, then after
	// each change, until ctx ends. It is a hint: Watch may send without a change, and may miss a change.
	Watch(ctx context.Context, changed chan<- struct{})
}

// Hint sends on a channel unless something waits in it already: a Source's Watch does so.
func Hint(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// Snapshot is the content of a Source at one time.
type Snapshot struct {
	Files []File
	Hash  string // of names, contents and order, in hex; see NewSnapshot
}

// NewSnapshot returns a snapshot of the files with their hash. The hash depends on the order of the files, so a Source
// must return the same files in the same order.
func NewSnapshot(files []File) Snapshot {
	h := sha256.New()
	for _, f := range files { // lengths keep bytes from moving from one field into the next
		var lengths [16]byte
		binary.BigEndian.PutUint64(lengths[:8], uint64(len(f.Name)))
		binary.BigEndian.PutUint64(lengths[8:], uint64(len(f.Data)))
		h.Write(lengths[:])
		h.Write([]byte(f.Name))
		for block := range slices.Chunk(f.Data, 64<<10) { // the scheduler cannot interrupt the hash of a block
			h.Write(block)
		}
	}
	return Snapshot{Files: files, Hash: hex.EncodeToString(h.Sum(nil))}
}

// ShortHash returns the first 12 characters of a hash, enough for people to tell two apart.
func ShortHash(hash string) string { return hash[:min(len(hash), 12)] }
