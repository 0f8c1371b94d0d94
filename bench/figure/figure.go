// Package figure writes measured values over sizes as a Markdown table and draws them as SVG, for the documentation.
package figure

import (
	"encoding/json"
	"fmt"
	"image/color"
	"os"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Figure is cost against the size of something: a table, and a plot of some of its columns.
type Figure struct {
	Name    string    `json:"name"`
	Title   string    `json:"title"`
	Size    string    `json:"size"`  // what grows
	Unit    string    `json:"unit"`  // of what is plotted
	Sizes   []int     `json:"sizes"` // increasing
	Columns []*Column `json:"columns"`

	Measured string `json:"measured"` // when, and of how much the figures are medians
	// Others is the largest share of the machine that other programs took during the measurement.
	Others float64 `json:"others_cpu,omitempty"`
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

// Size of a plot, in points of 1/72 inch.
const (
	plotWidth  = 480 * vg.Inch / 72
	plotHeight = 270 * vg.Inch / 72

	legendPadding = 3
)

// Draw writes a plot of the plotted columns, from 0 up over a logarithmic axis of sizes, to an .svg file. Unknown
// values are left out.
func (f *Figure) Draw(path string) error {
	p := plot.New()
	p.Title.Text = f.Title
	p.X.Label.Text = f.Size + " (logarithmic)"
	p.Y.Label.Text = f.Unit
	p.Y.Min = 0
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = f.ticks()
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(legendPadding)
	p.BackgroundColor = color.White
	p.Add(plotter.NewGrid())
	drawn := 0
	for _, c := range f.Columns {
		if !c.Plotted {
			continue
		}
		line, marks, err := plotter.NewLinePoints(f.points(c))
		if err != nil {
			return fmt.Errorf("figure %q, column %q: %w", f.Title, c.Name, err)
		}
		// Dashes and marks tell the curves apart without colour.
		line.Dashes, marks.Shape = plotutil.Dashes(drawn), plotutil.Shape(drawn)
		p.Add(line, marks)
		p.Legend.Add(c.Name, line, marks)
		drawn++
	}
	p.X.Max *= margin
	p.Y.Max *= headroom
	if err := p.Save(plotWidth, plotHeight, path); err != nil {
		return fmt.Errorf("figure %q: %w", f.Title, err)
	}
	return nil
}

const (
	margin   = 1.3 // space for the label of the largest size
	headroom = 1.4 // space for the legend above the highest value
)

func (f *Figure) points(c *Column) plotter.XYs {
	var points plotter.XYs
	for i, v := range c.Values {
		if v != Unknown {
			points = append(points, plotter.XY{X: float64(f.Sizes[i]), Y: v})
		}
	}
	return points
}

// ticks marks each size.
func (f *Figure) ticks() plot.ConstantTicks {
	ticks := make(plot.ConstantTicks, len(f.Sizes))
	for i, size := range f.Sizes {
		ticks[i] = plot.Tick{Value: float64(size), Label: Thousands(size)}
	}
	return ticks
}

// ReplaceBetween puts text between the marks of that name in a document.
func ReplaceBetween(path, name, text string) error {
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

// WriteJSON writes a file of figures.
func WriteJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
