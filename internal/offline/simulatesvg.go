package offline

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// The picture's measures in pixels.
const (
	svgWidth    = 960
	svgHead     = 96  // title and legend
	panelHeight = 236 // one panel with its texts
	panelLeft   = 62  // of the y axis within a panel
	panelTop    = 48  // of the plot within a panel
	plotHeight  = 134
	svgMargin   = 12
)

// WriteSVG draws one panel for each limit, all with the same axes.
func (r *Simulation) WriteSVG(w io.Writer) error {
	across := min(2, len(r.Runs))
	down := (len(r.Runs) + across - 1) / across
	d := &drawing{}
	height := svgHead + down*panelHeight + svgMargin
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" role="img" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="sans-serif" font-size="12">`, svgWidth, height)
	d.add(`<title>%s</title>`, escape(r.Rule+" against "+r.title()))
	d.add(`<defs><pattern id="denied" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">` +
		`<rect width="6" height="6" fill="#fff"/><rect width="1.6" height="6" fill="#333"/></pattern></defs>`)
	d.add(`<rect width="100%%" height="100%%" fill="#fff"/>`)
	d.text(svgMargin, 26, `font-size="16" font-weight="bold"`, "Rule: "+cut(r.Rule, 100))
	d.text(svgMargin, 48, `font-size="14"`, "Traffic: "+cut(r.title(), 110))
	r.legend(d)
	for i, run := range r.Runs {
		width := (svgWidth - 2*svgMargin) / across
		r.panel(d, run, float64(svgMargin+i%across*width), float64(svgHead+i/across*panelHeight), float64(width))
	}
	d.add(`</svg>`)
	_, err := io.WriteString(w, d.String())
	return err
}

// drawing collects the elements of an SVG, one a line.
type drawing struct{ strings.Builder }

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

func (d *drawing) text(x, y float64, attributes, text string) {
	d.add(`<text x="%.1f" y="%.1f" %s>%s</text>`, x, y, attributes, escape(text))
}

func (d *drawing) line(x1, y1, x2, y2 float64, attributes string) {
	d.add(`<path d="M%.1f %.1fL%.1f %.1f" %s/>`, x1, y1, x2, y2, attributes)
}

// The looks of what is drawn; they differ without colour.
const (
	offeredLook  = `fill="none" stroke="#000" stroke-width="1.5"`
	admittedLook = `fill="#7a7a7a"`
	deniedLook   = `fill="url(#denied)"`
	rateLook     = `stroke="#000" stroke-width="1.2" stroke-dasharray="6 4"`
	axisLook     = `stroke="#000"`
	gridLook     = `stroke="#ccc" stroke-width="0.7"`
)

func (r *Simulation) legend(d *drawing) {
	const y, height = 64, 13
	x := float64(svgMargin)
	entry := func(draw func(x float64), text string) {
		draw(x)
		d.text(x+30, y+height-2, "", text)
		x += 30 + 6.6*float64(len(text)) + 26
	}
	box := func(look string) func(float64) {
		return func(x float64) { d.add(`<rect x="%.1f" y="%d" width="24" height="%d" %s/>`, x, y, height, look) }
	}
	entry(box(offeredLook), "offered")
	entry(box(admittedLook), "admitted")
	entry(box(deniedLook), "denied")
	entry(func(x float64) { d.line(x, y+6.5, x+24, y+6.5, rateLook) }, "rate of the limit")
	text := fmt.Sprintf("counted over %s each", descriptors.FormatDuration(r.Options.Bucket))
	if slices.ContainsFunc(r.Runs, func(run LimitRun) bool { return run.LongestWait > 0 }) {
		text += "; what waits is admitted when it goes on"
	}
	d.text(x, y+height-2, `fill="#333"`, text)
}

// plot maps time and rate to the place of one panel.
type plot struct {
	x, y, width, height float64
	length, peak        float64 // seconds, hits per second
}

func (p plot) across(seconds float64) float64 { return p.x + p.width*min(seconds, p.length)/p.length }
func (p plot) up(rate float64) float64        { return p.y + p.height*(1-rate/p.peak) }

func (r *Simulation) panel(d *drawing, run LimitRun, x, y, width float64) {
	p := plot{
		x: x + panelLeft, y: y + panelTop, width: width - panelLeft - 20, height: plotHeight,
		length: r.Options.Length.Seconds(), peak: r.peak(),
	}
	d.text(p.x, y+20, `font-size="14" font-weight="bold"`, cut(r.describe(run), int(p.width/7.4)))
	d.text(p.x, y+38, `fill="#333"`, r.caption(run))
	r.axes(d, p)
	buckets := r.shown(run)
	none := func(Bucket) int64 { return 0 }
	offered := func(b Bucket) int64 { return b.Offered }
	admitted := func(b Bucket) int64 { return b.Admitted }
	decided := func(b Bucket) int64 { return b.Admitted + b.Denied }
	d.add(`<path d="%s" %s/>`, r.area(p, buckets, none, admitted), admittedLook)
	d.add(`<path d="%s" %s/>`, r.area(p, buckets, admitted, decided), deniedLook)
	d.add(`<path d="%sV%.1f" %s/>`, r.outline(p, buckets, offered), p.up(0), offeredLook)
	rate := float64(run.Policy.Limit()) / run.Policy.Window().Seconds()
	if rate <= p.peak && !run.Policy.Algorithm().CountsInFlight() {
		d.line(p.x, p.up(rate), p.x+p.width, p.up(rate), rateLook)
	}
	d.line(p.x, p.y+p.height, p.x+p.width, p.y+p.height, axisLook)
}

// caption is what the table says of a limit, in short.
func (r *Simulation) caption(run LimitRun) string {
	text := fmt.Sprintf("admitted %.0f%%, worst %s (at most %d)", 100*run.share(), run.worstText(), run.Bound)
	if run.LongestWait > 0 {
		text += ", waits up to " + rounded(run.LongestWait)
	}
	return text
}

func (r *Simulation) axes(d *drawing, p plot) {
	for i := range 5 {
		rate := p.peak * float64(i) / 4
		d.line(p.x, p.up(rate), p.x+p.width, p.up(rate), gridLook)
		d.text(p.x-6, p.up(rate)+4, `text-anchor="end"`, number(rate))
	}
	unit, name := r.timeUnit()
	for _, t := range r.timeTicks() {
		at := p.across(t * unit.Seconds())
		d.line(at, p.y+p.height, at, p.y+p.height+5, axisLook)
		d.text(at, p.y+p.height+18, `text-anchor="middle"`, number(t))
	}
	d.line(p.x, p.y, p.x, p.y+p.height, axisLook)
	d.text(p.x+p.width/2, p.y+p.height+35, `text-anchor="middle"`, "time ("+name+")")
	middle := p.y + p.height/2
	left := p.x - panelLeft + 14
	d.add(`<text x="%.1f" y="%.1f" text-anchor="middle" transform="rotate(-90 %.1f %.1f)">%s</text>`,
		left, middle, left, middle, escape(r.Unit+"/s"))
}

// outline is the line along the top of a count.
func (r *Simulation) outline(p plot, buckets []Bucket, count func(Bucket) int64) string {
	var path strings.Builder
	fmt.Fprintf(&path, "M%.1f %.1f", p.x, p.up(0))
	for i, b := range buckets {
		fmt.Fprintf(&path, "V%.1fH%.1f", p.up(r.perSecond(count(b))), p.across(float64(i+1)*r.Options.Bucket.Seconds()))
	}
	return path.String()
}

// area is the path around what lies between two counts.
func (r *Simulation) area(p plot, buckets []Bucket, low, high func(Bucket) int64) string {
	var path strings.Builder
	path.WriteString(r.outline(p, buckets, high))
	for i, b := range slices.Backward(buckets) {
		fmt.Fprintf(&path, "V%.1fH%.1f", p.up(r.perSecond(low(b))), p.across(float64(i)*r.Options.Bucket.Seconds()))
	}
	return path.String() + "Z"
}

// cut shortens a text to that many characters.
func cut(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

func escape(text string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(text)); err != nil {
		return "" // a Builder takes everything
	}
	return b.String()
}
