package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// figure is cost against the size of something, as a table of docs/performance.md.
type figure struct {
	Name    string    `json:"name"`
	Title   string    `json:"title"`
	Size    string    `json:"size"`  // what grows
	Sizes   []int     `json:"sizes"` // increasing
	Columns []*column `json:"columns"`

	Measured string `json:"measured"` // when, and of how much the figures are medians
	// Others is the largest share of the machine that other programs took during the measurement.
	Others float64 `json:"others_cpu,omitempty"`
}

// add begins another column.
func (f *figure) add(name string, digits int) {
	f.Columns = append(f.Columns, &column{Name: name, Digits: digits})
}

// put adds a value to a column: that of the next size.
func (f *figure) put(column int, v float64) {
	f.Columns[column].Values = append(f.Columns[column].Values, v)
}

// unknown stands for a value that was not measured.
const unknown = -1

// column is a value for each size.
type column struct {
	Name   string    `json:"name"`   // with its unit
	Digits int       `json:"digits"` // shown after the point
	Values []float64 `json:"values"`
}

// table is the figure in Markdown.
func (f *figure) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |", f.Size)
	for _, c := range f.Columns {
		fmt.Fprintf(&b, " %s |", c.Name)
	}
	fmt.Fprintf(&b, "\n|%s\n", strings.Repeat("---|", 1+len(f.Columns)))
	for i, size := range f.Sizes {
		fmt.Fprintf(&b, "| %s |", thousands(size))
		for _, c := range f.Columns {
			if c.Values[i] == unknown {
				b.WriteString(" |")
				continue
			}
			fmt.Fprintf(&b, " %s |", strconv.FormatFloat(c.Values[i], 'f', c.Digits, 64))
		}
		b.WriteByte('\n')
	}
	if f.Measured == "" {
		return b.String()
	}
	fmt.Fprintf(&b, "\nMeasured %s.", f.Measured)
	if f.Others >= 0.05 {
		fmt.Fprintf(&b, " Other programs took up to %.0f %% of the machine.", 100*f.Others)
	}
	b.WriteByte('\n')
	return b.String()
}

// thousands writes 10000 as 10,000.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// replaceBetween puts text between the marks of that name in a document.
func replaceBetween(path, name, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->"
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, also := strings.Cut(rest, end)
	if !ok || !also {
		return fmt.Errorf("%s lacks the marks %q and %q", path, strings.TrimSpace(begin), end)
	}
	return os.WriteFile(path, []byte(before+begin+text+end+after), 0o644)
}

// writeJSON writes a file of figures.
func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
