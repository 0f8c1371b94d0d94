package reload

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
)

// Snapshot is what a Source held at one time.
type Snapshot struct {
	Files []File
	Hash  string // of names, contents and order, in hex; see NewSnapshot
}

// NewSnapshot hashes files as they are ordered: a Source gives the same files in the same order.
func NewSnapshot(files []File) Snapshot { return newSnapshot(files, func() {}) }

func newSnapshot(files []File, rest func()) Snapshot {
	h := sha256.New()
	for _, f := range files { // with lengths, so that nothing can move from one field into the next
		var lengths [16]byte
		binary.BigEndian.PutUint64(lengths[:8], uint64(len(f.Name)))
		binary.BigEndian.PutUint64(lengths[8:], uint64(len(f.Data)))
		h.Write(lengths[:])
		h.Write([]byte(f.Name))
		for piece := range slices.Chunk(f.Data, restAfter) {
			rest() // without it, nothing interrupts the hash: not even the collector, for which all others then wait
			h.Write(piece)
		}
	}
	return Snapshot{Files: files, Hash: hex.EncodeToString(h.Sum(nil))}
}

// ShortHash is a hash's beginning, enough for people to tell two apart.
func ShortHash(hash string) string { return hash[:min(len(hash), 12)] }
