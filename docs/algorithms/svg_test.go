package algorithms

import (
	"encoding/xml"
	"fmt"
	"strings"
	"time"
)

// A drawing has its own ground, dark where the reader's is, and tells what it shows by shape, not by colour alone.
const style = `<style>
.ground{fill:#fff}.text{fill:#1f2328}.faint{fill:#57606a}.axis{stroke:#57606a;fill:none}.grid{stroke:#d0d7de}
.curve{stroke:#0969da;fill:none;stroke-width:1.8}.admitted{fill:#1a7f37;stroke:#1a7f37}
.denied{stroke:#cf222e;fill:none;stroke-width:1.4}.wait{stroke:#1a7f37;fill:none}.bar{stroke:#1a7f37;stroke-width:5}
.line{stroke:#57606a;stroke-dasharray:6 4}.span{stroke:#8250df;fill:none;stroke-width:2}.spantext{fill:#8250df}
@media (prefers-color-scheme:dark){
.ground{fill:#161b22}.text{fill:#e6edf3}.faint{fill:#9da7b3}.axis{stroke:#9da7b3}.grid{stroke:#30363d}
.curve{stroke:#58a6ff}.admitted{fill:#3fb950;stroke:#3fb950}.denied{stroke:#ff7b72}.wait{stroke:#3fb950}
.bar{stroke:#3fb950}.line{stroke:#9da7b3}.span{stroke:#d2a8ff}.spantext{fill:#d2a8ff}}
</style>`

// Measures of a drawing in pixels.
const (
	width, left, right = 800, 56, 20
	rowTop             = 62  // requests that are admitted, or come
	rowBelow           = 88  // requests that are denied, or go on
	spanTop            = 106 // the window with the most hits
	plotTop, plotLow   = 160, 300
	height             = 346
)

type canvas struct {
	strings.Builder

	s scene
}

func draw(s scene, h history) []byte {
	c := &canvas{s: s}
	low := 0
	if h.policy.Algorithm().CountsInFlight() {
		low = 12 * len(h.answers) // a row for each request
	}
	c.add(`<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 %d %d" width="%d" height="%d" `+
		`font-family="sans-serif" font-size="12">`, width, height+low, width, height+low)
	c.add(`<title>%s</title>`, escape(s.title+": "+summary(h)))
	c.add("%s", style)
	c.add(`<rect class="ground" width="100%%" height="100%%" rx="6"/>`)
	c.text(left, 24, "text", `font-size="14" font-weight="bold"`, s.title)
	c.text(left, 42, "faint", "", summary(h))
	switch {
	case low > 0:
		c.inFlight(h)
		c.add(`<g transform="translate(0 %d)">`, low-60)
		c.plot(h)
		c.add(`</g>`)
	default:
		c.requests(h)
		c.span(h)
		c.plot(h)
	}
	c.add(`</svg>`)
	return []byte(c.String())
}

// summary says in words what the drawing shows.
func summary(h history) string {
	admitted, denied, waited := 0, 0, 0
	for _, a := range h.answers {
		switch {
		case !a.admitted:
			denied++
		case a.goes > a.at:
			waited++
			admitted++
		default:
			admitted++
		}
	}
	text := fmt.Sprintf("%d of %d requests admitted (dots), %d denied (crosses)", admitted, len(h.answers), denied)
	if waited > 0 {
		text += fmt.Sprintf("; %d of them wait (slanted lines)", waited)
	}
	return text
}

func (c *canvas) add(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

func (c *canvas) text(x, y float64, class, more, text string) {
	c.add(`<text class="%s" x="%.1f" y="%.1f" %s>%s</text>`, class, x, y, more, escape(text))
}

func (c *canvas) across(at time.Duration) float64 {
	return left + (width-left-right)*at.Seconds()/c.s.length.Seconds()
}

func (c *canvas) up(value float64) float64 {
	value = min(max(value, c.s.bottom), c.s.top)
	return plotLow - (plotLow-plotTop)*(value-c.s.bottom)/(c.s.top-c.s.bottom)
}

// requests draws a dot for each request that is admitted and a cross for each that is denied. Where requests wait, a
// line leads from where one comes to where it goes on.
func (c *canvas) requests(h history) {
	c.add(`<path class="axis" d="M%d %dH%d"/>`, left, (rowTop+rowBelow)/2, width-right)
	for _, a := range h.answers {
		x := c.across(a.at)
		switch {
		case !a.admitted:
			c.cross(x, rowBelow)
			continue
		case a.goes > a.at:
			c.add(`<path class="wait" d="M%.1f %dL%.1f %d"/>`, x, rowTop, c.across(a.goes), (rowTop+rowBelow)/2)
		}
		c.dot(x, rowTop, a.cost)
	}
}

// dot is larger for a larger cost, which it names.
func (c *canvas) dot(x, y float64, cost int64) {
	c.add(`<circle class="admitted" cx="%.1f" cy="%.1f" r="%.1f"/>`, x, y, 2.6+0.3*float64(cost-1))
	if cost > 1 {
		c.text(x+10, y+4, "text", "", fmt.Sprintf("cost %d", cost))
	}
}

func (c *canvas) cross(x, y float64) {
	c.add(`<path class="denied" d="M%.1f %.1fl6 6m0 -6l-6 6"/>`, x-3, y-3)
}

// inFlight draws a bar for as long as each request runs.
func (c *canvas) inFlight(h history) {
	y := float64(rowTop)
	for _, a := range h.answers {
		if !a.admitted {
			c.cross(c.across(a.at), y)
		} else {
			c.dot(c.across(a.at), y, a.cost)
			if a.lasts == 0 {
				c.text(c.across(a.at)+8, y+4, "faint", "", "never released")
			}
			c.add(`<path class="bar" d="M%.1f %.1fH%.1f"/>`, c.across(a.at), y, c.across(a.ends))
		}
		y += 12
	}
}

// span marks the window in which the most hits go on.
func (c *canvas) span(h history) {
	from, to := c.across(h.from), c.across(min(h.from+h.policy.Window(), c.s.length))
	c.add(`<path class="span" d="M%.1f %dv8H%.1fv-8"/>`, from, spanTop, to)
	c.text(min((from+to)/2, width-170), spanTop+24, "spantext", `text-anchor="middle"`,
		fmt.Sprintf("most in any %.0f s: %d hits", h.policy.Window().Seconds(), h.worst))
}

// plot draws the counter over time.
func (c *canvas) plot(h history) {
	c.text(left, plotTop-8, "faint", "", c.s.counter)
	step := (c.s.top - c.s.bottom) / 4
	for i := range 5 {
		v := c.s.bottom + step*float64(i)
		c.add(`<path class="grid" d="M%d %.1fH%d"/>`, left, c.up(v), width-right)
		c.text(left-8, c.up(v)+4, "faint", `text-anchor="end"`, number(v))
	}
	if c.s.line > 0 {
		c.add(`<path class="line" d="M%d %.1fH%d"/>`, left, c.up(c.s.line), width-right)
	}
	for at := time.Duration(0); at <= c.s.length; at += 5 * time.Second {
		x := c.across(at)
		if c.s.windows && at%c.s.limit.Window == 0 {
			c.add(`<path class="line" d="M%.1f %dV%d"/>`, x, plotTop, plotLow)
		}
		c.add(`<path class="axis" d="M%.1f %dv5"/>`, x, plotLow)
		c.text(x, plotLow+19, "faint", `text-anchor="middle"`, number(at.Seconds()))
	}
	c.text((left+width-right)/2, plotLow+37, "faint", `text-anchor="middle"`, "seconds")
	var path strings.Builder
	pen, drawn := "M", ""
	for _, p := range h.points {
		if c.s.paced && p.value < 0 {
			pen = "M"
			continue
		}
		at := fmt.Sprintf("%.1f %.1f", c.across(p.at), c.up(p.value))
		if at != drawn {
			path.WriteString(pen + at)
		}
		pen, drawn = "L", at
	}
	c.add(`<path class="curve" d="%s"/>`, path.String())
	c.add(`<path class="axis" d="M%d %dV%dH%d"/>`, left, plotTop, plotLow, width-right)
}

func number(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") }

func escape(text string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(text)); err != nil {
		return "" // a Builder takes everything
	}
	return b.String()
}
