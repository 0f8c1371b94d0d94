package descriptors

import (
	"fmt"
	"slices"
	"strings"
)

// Bounds of how a Matcher is shown.
const (
	maxShownItems = 3
	maxSharedText = 64 // bytes of a key that stand for a shared matcher
)

// text is the matcher as a rule's path shows it. Two rules of one level differ in it, as no two of them may have the
// same first item.
func (m *Matcher) text() string {
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
