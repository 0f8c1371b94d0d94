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

// hashPrefix tells a hash from a plain value.
const hashPrefix = "hmac:"

const (
	hashBytes = 16 // of HMAC-SHA256's 32
	minKey    = 16 // bytes
)

// ReadKey reads the secret of hashes from a file. The secret has at least 16 bytes, without white space around them.
func ReadKey(path string) ([]byte, error) {
	key, err := fileread.ReadFile(context.Background(), path)
	if err != nil {
		return nil, err
	}
	if key = bytes.TrimSpace(key); len(key) < minKey {
		return nil, fmt.Errorf(
			"%s has %d bytes, a key needs %d or more: openssl rand -hex 32 > %s", path, len(key), minKey, path)
	}
	return key, nil
}

// HashValues returns the function that hashes an entry's value with the secret, as a log with Hashed does.
func HashValues(secret []byte) func(key, value string) string {
	h := newHasher(secret)
	return func(key, value string) string { return string(h.appendHash(nil, "value", key, value)) }
}

// IsHash reports whether a value in a log is a hash.
func IsHash(value string) bool {
	rest, ok := strings.CutPrefix(value, hashPrefix)
	return ok && len(rest) == 2*hashBytes
}

// hasher makes hashes with a secret. It is safe for concurrent use.
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

// appendHash appends the hash of the parts, each of which ends with a zero byte. Only the last part may have a zero
// byte inside: keys of entries come from Envoy's configuration and have none.
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
