package redisstore

import (
	"errors"
	"fmt"
	"strings"
)

// longest is how many bytes of a text that came from Redis an error or a log line holds: a server may answer more.
const longest = 300

// cut is the text, without its end if it is long.
func cut(text string) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}

// errPanic is wrapped by an error in place of a panic.
var errPanic = errors.New("panic while Redis was asked")

// survive calls f, and answers a panic in it as an error: what a server replies must not end this process.
func survive(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	f()
	return nil
}
