package descriptors

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A rule's path joins the parts of its descriptors from the root with " > ". A part is the key, followed by =value or
// by the form and its items. Backslashes make paths unique within a domain. They occur only where they are needed.

// pathKey returns a key with a backslash before each backslash, = and space.
var pathKey = strings.NewReplacer(`\`, `\\`, `=`, `\=`, ` `, `\ `).Replace

// pathValue returns a value, or the items of a form, with " > " written as " \> ", also at the end. A " \> " in the
// value itself gets another backslash.
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

// SplitPath splits a rule's Path. For each descriptor it returns the key, and the rest, which is "=" and the value, a
// space and a matcher, or empty. Keys and values are as in the rule file.
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
	pathPart = regexp.MustCompile(`(?s)^((?:\\.|[^\\= ])*)(.*?)(?: > |$)`) // key, rest and separator
	escape   = regexp.MustCompile(`(?s)\\(.)`)

	beforeComma = regexp.MustCompile(`(\\*),`)
	atEnd       = regexp.MustCompile(`(\\+)$`)
)

// pathItem returns an item of a list with commas escaped. Backslashes before a comma and at the end are doubled.
func pathItem(item string) string {
	if !strings.Contains(item, ",") && !strings.HasSuffix(item, `\`) {
		return item
	}
	return atEnd.ReplaceAllString(beforeComma.ReplaceAllString(item, `$1$1\,`), "$1$1")
}

// Bounds for the display of a Matcher.
const (
	maxShownItems = 3
	maxSharedText = 64 // bytes of a shared matcher in a key
)

// text returns the matcher for a path. It is unique in its level, as no two rules may have the same first item.
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

// shared returns the matcher for the key of the counter that all its values share. It does not depend on the order of
// the items. It begins with *#, unlike any pattern, value or hash.
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
