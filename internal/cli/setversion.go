package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// minHash is how many digits of a hash tell two sets apart.
const minHash = 8

// setVersion names a published set, as VERSION or VERSION:HASH. The number alone is given out again where Redis was
// emptied; the hash is of the content.
type setVersion struct {
	Version uint64
	Hash    string // its beginning; empty: any
}

// UnmarshalText implements encoding.TextUnmarshaler, for a flag's value.
func (v *setVersion) UnmarshalText(text []byte) error {
	number, hash, hashed := strings.Cut(string(text), ":")
	n, err := strconv.ParseUint(number, 10, 64)
	isHash := len(hash) >= minHash && strings.Trim(hash, "0123456789abcdef") == ""
	if err != nil || hashed && (!isHash || n == 0) {
		return fmt.Errorf("must be a version, such as 12, or better with %d or more digits of its hash, such as "+
			"12:4f2ab09c11de, got %q", minHash, text)
	}
	v.Version, v.Hash = n, hash
	return nil
}

// String is what UnmarshalText reads.
func (v *setVersion) String() string {
	if v.Hash == "" {
		return strconv.FormatUint(v.Version, 10)
	}
	return fmt.Sprintf("%d:%s", v.Version, v.Hash)
}

// is says whether that is the set.
func (v *setVersion) is(of *rules.PublishedInfo) bool {
	return v.Version == of.Version && strings.HasPrefix(of.Hash, v.Hash)
}

// mark is the set as a setVersion: 0 if there is none.
func mark(of *rules.PublishedInfo) string {
	v := setVersion{Version: of.Version}
	if of.Version > 0 {
		v.Hash = reload.ShortHash(of.Hash)
	}
	return v.String()
}
