package descriptors

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

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
	words := strings.Split(value, " ")
	for i := 1; i < len(words); i++ {
		if strings.TrimLeft(words[i], `\`) == ">" {
			words[i] = `\` + words[i]
		}
	}
	return strings.Join(words, " ")
}

// SplitPath splits a rule's Path: for each descriptor its key, and what follows it, which is "=" and the value, a space
// and a matcher, or nothing. Keys and values are as the rule file has them.
func SplitPath(path string) (levels [][2]string) {
	for path != "" {
		part := pathPart.FindStringSubmatch(path)
		path = path[len(part[0]):]
		words := strings.Split(part[2], " ")
		for i, word := range words {
			if strings.TrimLeft(word, `\`) == ">" && i > 0 {
				words[i] = word[1:]
			}
		}
		levels = append(levels, [2]string{escape.ReplaceAllString(part[1], "$1"), strings.Join(words, " ")})
	}
	return levels
}

var (
	pathPart = regexp.MustCompile(`(?s)^((?:\\.|[^\\= ])*)(.*?)(?: > |$)`) // a key, what follows it, and the separator
	escape   = regexp.MustCompile(`(?s)\\(.)`)

	beforeComma = regexp.MustCompile(`(\\*),`)
	atEnd       = regexp.MustCompile(`(\\+)$`)
)

// pathItem is an item of a list as a path shows it: backslashes are doubled before a comma and at the end, and a
// comma has one.
func pathItem(item string) string {
	if !strings.Contains(item, ",") && !strings.HasSuffix(item, `\`) {
		return item
	}
	return atEnd.ReplaceAllString(beforeComma.ReplaceAllString(item, `$1$1\,`), "$1$1")
}

// Bounds of how a Matcher is shown.
const (
	maxShownItems = 3
	maxSharedText = 64 // bytes of a key that stand for a shared matcher
)

// text is the matcher as a rule's path shows it. Two rules of one level differ in it, as no two of them may have the
// same first item.
func (m *Matcher) text() string {
	if m.Form == "" {
		return ""
	}
	names := make([]string, 0, maxShownItems+1)
	for _, p := range m.Items[:min(len(m.Items), maxShownItems)] {
		if m.Form == FormValues {
			names = append(names, pathItem(p.Text))
			continue
		}
		names = append(names, p.Text)
	}
	if more := len(m.Items) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return " " + string(m.Form) + " " + strings.Join(names, ", ")
}

// shared stands for the matcher in the key of a counter that all of its values share: whatever order its items have.
// It begins with *#, which no pattern, no value and no hash does.
func (m *Matcher) shared() string {
	items := make([]string, len(m.Items))
	for i, p := range m.Items {
		items[i] = string(appendEscaped(nil, p.Text, &inItem))
	}
	slices.Sort(items)
	text := []byte("*#" + string(m.Form) + ":" + strings.Join(items, ","))
	if len(text) > maxSharedText {
		start := len("*#") + len(m.Form) + len(":")
		text = hashFrom(text, start, start)
	}
	return string(text)
}
