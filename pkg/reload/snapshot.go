package reload

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
)

// Snapshot is the content of a Source at one time.
type Snapshot struct {
	Files []File
	Hash  string // of names, contents and order, in hex; see NewSnapshot
}

// NewSnapshot returns a snapshot of the files with their hash. The hash depends on the order of the files, so a Source
// must return the same files in the same order.
func NewSnapshot(files []File) Snapshot { return newSnapshot(files, func() {}) }

func newSnapshot(files []File, rest func()) Snapshot {
	h := sha256.New()
	for _, f := range files { // lengths keep bytes from moving from one field into the next
		var lengths [16]byte
		binary.BigEndian.PutUint64(lengths[:8], uint64(len(f.Name)))
		binary.BigEndian.PutUint64(lengths[8:], uint64(len(f.Data)))
		h.Write(lengths[:])
		h.Write([]byte(f.Name))
		for chunk := range slices.Chunk(f.Data, restAfter) {
			rest() // nothing else interrupts the hash, not even the garbage collector, for which all goroutines would wait
			h.Write(chunk)
		}
	}
	return Snapshot{Files: files, Hash: hex.EncodeToString(h.Sum(nil))}
}

// ShortHash returns the first 12 characters of a hash, enough for people to tell two apart.
func ShortHash(hash string) string { return hash[:min(len(hash), 12)] }
