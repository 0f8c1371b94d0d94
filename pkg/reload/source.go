package reload

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
)

// File is a file that a Source has read. Name is the file's path for messages.
type File struct {
	Name string
	Data []byte
	// Included reports that another file refers to this file: see Files.Includes.
	Included bool
}

// Source reads files and watches them.
type Source interface {
	// Read returns all files. Its error names the paths that it could not read.
	Read(ctx context.Context) (Snapshot, error)
	// Watch sends a hint on changed (see Hint) when it has begun to watch, and after each change, until ctx ends. Watch
	// may send without a change, and may miss a change.
	Watch(ctx context.Context, changed chan<- struct{})
}

// Hint sends on a buffered channel without blocking. It does nothing if the channel is full.
func Hint(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// Snapshot is the content of a Source at one time.
type Snapshot struct {
	Files []File
	Hash  string // SHA-256 of the names and contents in order, in hex; see NewSnapshot
}

// NewSnapshot returns a snapshot of the files with their hash. The hash depends on the order of the files, so a Source
// must return the same files in the same order.
func NewSnapshot(files []File) Snapshot {
	h := sha256.New()
	for _, f := range files { // with the lengths, different names and contents never have the same bytes
		var lengths [16]byte
		binary.BigEndian.PutUint64(lengths[:8], uint64(len(f.Name)))
		binary.BigEndian.PutUint64(lengths[8:], uint64(len(f.Data)))
		h.Write(lengths[:])
		h.Write([]byte(f.Name))
		for block := range slices.Chunk(f.Data, 64<<10) { // in small blocks, because Go cannot preempt the hash of a block
			h.Write(block)
		}
	}
	return Snapshot{Files: files, Hash: hex.EncodeToString(h.Sum(nil))}
}

// ShortHash returns the first 12 characters of a hash, for messages.
func ShortHash(hash string) string { return hash[:min(len(hash), 12)] }
