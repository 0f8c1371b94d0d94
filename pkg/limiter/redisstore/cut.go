package redisstore

import "strings"

// longest is how many bytes of a text that came from Redis an error or a log line holds: a server may answer megabytes.
const longest = 300

// cut is the text, without its end if it is long.
func cut(text string) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}
