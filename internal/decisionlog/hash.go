package decisionlog

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
	"sync"

	"github.com/weir-ratelimit/weir/pkg/fileread"
)

// hashPrefix marks what is a hash and no value.
const hashPrefix = "hmac:"

const (
	hashBytes = 16 // of HMAC-SHA256's 32
	minKey    = 16 // bytes
)

// ReadKey reads the secret of hashes from a file: at least 16 bytes, white space around them left out.
func ReadKey(path string) ([]byte, error) {
	key, err := fileread.ReadFile(context.Background(), path)
	if err != nil {
		return nil, err
	}
	if key = bytes.TrimSpace(key); len(key) < minKey {
		return nil, fmt.Errorf("%s has %d bytes, a key needs %d or more: openssl rand -hex 32 > %s", path, len(key), minKey, path)
	}
	return key, nil
}

// HashValues returns what makes the hash of an entry's value, as the log has it by Hashed with this secret.
func HashValues(secret []byte) func(key, value string) string {
	h := newHasher(secret)
	return func(key, value string) string { return string(h.appendHash(nil, "value", key, value)) }
}

// IsHash says whether a value in a log is a hash.
func IsHash(value string) bool {
	rest, ok := strings.CutPrefix(value, hashPrefix)
	return ok && len(rest) == 2*hashBytes
}

// hasher makes hashes by a secret.
type hasher struct{ states sync.Pool }

type hashState struct {
	mac  hash.Hash
	text []byte
}

func newHasher(secret []byte) *hasher {
	if secret == nil {
		secret = make([]byte, sha256.Size)
		rand.Read(secret)
	}
	return &hasher{sync.Pool{New: func() any { return &hashState{mac: hmac.New(sha256.New, secret)} }}}
}

// appendHash appends the hash of what the parts are. Only the last may have a zero byte that could be mistaken for an end: keys
// of entries come from Envoy's configuration.
func (h *hasher) appendHash(dst []byte, parts ...string) []byte {
	s, ok := h.states.Get().(*hashState)
	if !ok {
		return dst
	}
	defer h.states.Put(s)
	s.text = s.text[:0]
	for _, p := range parts {
		s.text = append(append(s.text, p...), 0)
	}
	s.mac.Reset()
	s.mac.Write(s.text)
	s.text = s.mac.Sum(s.text[:0])
	return hex.AppendEncode(append(dst, hashPrefix...), s.text[:hashBytes])
}
