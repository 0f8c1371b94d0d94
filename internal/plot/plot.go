// Package plot draws curves over sizes as SVG and writes them as a table, for the documentation.
package plot

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Figure is cost against the size of something: a table, and a plot of some of its columns.
type Figure struct {
	Name    string    `json:"name"`
	Title   string    `json:"title"`
	Size    string    `json:"size"`  // what grows
	Unit    string    `json:"unit"`  // of what is plotted
	Sizes   []int     `json:"sizes"` // increasing
	Columns []*Column `json:"columns"`

	Measured string  `json:"measured"`             // when, and of how much the figures are medians
	Others   float64 `json:"others_cpu,omitempty"` // the largest share of the machine that programs of others took meanwhile
}

// Add begins another column.
func (f *Figure) Add(name string, plotted bool, digits int) {
	f.Columns = append(f.Columns, &Column{Name: name, Plotted: plotted, Digits: digits})
}

// Put adds a value to a column: that of the next size.
func (f *Figure) Put(column int, v float64) {
	f.Columns[column].Values = append(f.Columns[column].Values, v)
}

// Unknown stands for a value that was not measured.
const Unknown = -1

// Column is a value for each size.
type Column struct {
	Name    string    `json:"name"` // with its unit
	Plotted bool      `json:"plotted"`
	Digits  int       `json:"digits"` // shown after the point
	Values  []float64 `json:"values"`
}

// Table is the figure in Markdown.
func (f *Figure) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |", f.Size)
	for _, c := range f.Columns {
		fmt.Fprintf(&b, " %s |", c.Name)
	}
	fmt.Fprintf(&b, "\n|%s\n", strings.Repeat("---|", 1+len(f.Columns)))
	for i, size := range f.Sizes {
		fmt.Fprintf(&b, "| %s |", Thousands(size))
		for _, c := range f.Columns {
			if c.Values[i] == Unknown {
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

// Thousands writes 10000 as 10,000.
func Thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// The plot's measures, in pixels.
const (
	plotWidth, plotHeight = 640, 360
	plotLeft, plotRight   = 70, 40
	plotTop, plotBottom   = 70, 60
)

// dashes and marks tell curves apart without colour.
var (
	dashes = []string{"none", "7 4", "2 3"}
	marks  = []string{
		`<circle cx="%.1f" cy="%.1f" r="4"/>`,
		`<path d="M%.1f %.1fm-4 4l4 -8l4 8z" fill="#fff" stroke="#000"/>`,
		`<path d="M%.1f %.1fm-4 -4l8 8m0 -8l-8 8" stroke="#000"/>`,
	}
)

// SVG draws the plotted columns from 0 over a logarithmic axis of sizes.
func (f *Figure) SVG() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<text x="%d" y="22" font-size="14" font-weight="bold">%s</text>`+"\n", plotLeft, f.Title)
	step, ticks := f.scale()
	x := func(size int) float64 {
		low, high := math.Log(float64(f.Sizes[0])), math.Log(float64(f.Sizes[len(f.Sizes)-1]))
		if high == low {
			return plotLeft
		}
		return plotLeft + (plotWidth-plotLeft-plotRight)*(math.Log(float64(size))-low)/(high-low)
	}
	y := func(v float64) float64 {
		return plotHeight - plotBottom - (plotHeight-plotTop-plotBottom)*v/(step*float64(ticks))
	}
	for i := range ticks + 1 {
		v := step * float64(i)
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ccc"/>`+"\n", plotLeft, y(v), plotWidth-plotRight)
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", plotLeft-8, y(v)+4, strconv.FormatFloat(v, 'g', 6, 64))
	}
	for _, size := range f.Sizes {
		fmt.Fprintf(&b, `<path d="M%.1f %.1fv5" stroke="#000"/>`+"\n", x(size), y(0))
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", x(size), y(0)+19, Thousands(size))
	}
	fmt.Fprintf(&b, `<path d="M%d %dV%.1fH%d" stroke="#000" fill="none"/>`+"\n", plotLeft, plotTop, y(0), plotWidth-plotRight)
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s (logarithmic)</text>`+"\n", (plotLeft+plotWidth-plotRight)/2, plotHeight-14, f.Size)
	fmt.Fprintf(&b, `<text transform="translate(16 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (plotTop+plotHeight-plotBottom)/2, f.Unit)
	f.curves(&b, x, y)
	b.WriteString("</svg>\n")
	return b.String()
}

func (f *Figure) curves(b *strings.Builder, x func(int) float64, y func(float64) float64) {
	n, at := 0, float64(plotLeft)
	for _, c := range f.Columns {
		if !c.Plotted {
			continue
		}
		look := fmt.Sprintf(`stroke="#000" stroke-width="1.5" fill="none" stroke-dasharray="%s"`, dashes[n%len(dashes)])
		mark := marks[n%len(marks)] + "\n"
		var line strings.Builder
		for i, size := range f.Sizes {
			fmt.Fprintf(&line, "%c%.1f %.1f", "ML"[min(i, 1)], x(size), y(c.Values[i]))
		}
		fmt.Fprintf(b, `<path d="%s" %s/>`+"\n", line.String(), look)
		for i, size := range f.Sizes {
			fmt.Fprintf(b, mark, x(size), y(c.Values[i]))
		}
		fmt.Fprintf(b, `<path d="M%.1f 46h36" %s/>`+"\n", at, look)
		fmt.Fprintf(b, mark, at+18, 46.0)
		fmt.Fprintf(b, `<text x="%.1f" y="50">%s</text>`+"\n", at+44, c.Name)
		at += 44 + 6.6*float64(len(c.Name)) + 20
		n++
	}
}

// scale is the distance of the ticks, 1, 2 or 5 times a power of ten, and how many it takes to reach above all values.
func (f *Figure) scale() (step float64, ticks int) {
	most := 0.0
	for _, c := range f.Columns {
		if c.Plotted {
			for _, v := range c.Values {
				most = max(most, v)
			}
		}
	}
	if most == 0 {
		return 1, 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most/5)))
	for _, m := range []float64{1, 2, 5, 10} {
		step = m * power
		if ticks = int(math.Ceil(most / step)); ticks <= 6 {
			break
		}
	}
	return step, ticks
}
