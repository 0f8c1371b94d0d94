package descriptors

import "strings"

// A rule's path is the parts of its descriptors from the root, separated by " > ". A part is the key, and then
// =value, or the form and its items. Different rules of a domain have different paths: a backslash stands before what
// would make two alike, and else nowhere.

// pathKey is a key as a path shows it: a backslash is before each backslash, = and space.
func pathKey(key string) string {
	if !strings.ContainsAny(key, `\= `) {
		return key
	}
	return strings.NewReplacer(`\`, `\\`, `=`, `\=`, ` `, `\ `).Replace(key)
}

// pathValue is a value, or the items of a form, as a path shows it: " > " is " \> " there, also at the end, and what
// looks like that already has one more backslash.
func pathValue(value string) string {
	if !strings.Contains(value, ">") {
		return value
	}
	var b strings.Builder
	done := 0
	for i := range len(value) {
		if value[i] != '>' || i+1 < len(value) && value[i+1] != ' ' {
			continue
		}
		from := i
		for from > done && value[from-1] == '\\' {
			from--
		}
		if from > 0 && value[from-1] == ' ' {
			b.WriteString(value[done:i])
			b.WriteByte('\\')
			done = i
		}
	}
	b.WriteString(value[done:])
	return b.String()
}

// pathItem is an item of a list as a path shows it: backslashes are doubled before a comma and at the end, and a
// comma has one.
func pathItem(item string) string {
	if !strings.Contains(item, ",") && !strings.HasSuffix(item, `\`) {
		return item
	}
	var b strings.Builder
	run := 0 // backslashes that were read last
	for i := range len(item) {
		switch c := item[i]; c {
		case '\\':
			run++
		case ',':
			b.WriteString(strings.Repeat(`\`, run+1))
			run = 0
		default:
			run = 0
		}
		b.WriteByte(item[i])
	}
	b.WriteString(strings.Repeat(`\`, run))
	return b.String()
}
