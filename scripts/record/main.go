// Command record runs a command and draws what it prints as an animated SVG, such as the recording in README.md:
//
//	record -o docs/img/demo.svg -title 'make demo' bin/demo
//
// The picture is made of nothing but what the command printed and when. Pauses are shortened, so that it stays short.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"html"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"time"
)

const (
	rows       = 20 // of the picture
	columns    = 84
	lineHeight = 19
	margin     = 16
	bar        = 34 // the height of the title's bar

	shortest = 110 * time.Millisecond // between two lines
	longest  = 1200 * time.Millisecond
	rest     = 6 * time.Second // at the end, before it begins again
)

// line is a line that the command printed, after how long since the one before.
type line struct {
	text  string
	after time.Duration
}

func main() {
	out := flag.String("o", "", "file to write")
	title := flag.String("title", "", "title of the picture, and its first line as a prompt")
	flag.Parse()
	if *out == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *out, *title, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, title string, command []string) error {
	lines, err := record(ctx, command)
	if err != nil {
		return err
	}
	lines = append([]line{{text: "$ " + title}}, lines...)
	return os.WriteFile(out, []byte(draw(title, lines)), 0o644) //nolint:gosec // a picture for the repository
}

// record runs the command to its end and returns what it printed.
func record(ctx context.Context, command []string) (lines []line, err error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // whoever records names it
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	last, scanner := time.Now(), bufio.NewScanner(stdout)
	for scanner.Scan() {
		now := time.Now()
		lines, last = append(lines, line{text: clean(scanner.Text()), after: now.Sub(last)}), now
	}
	return lines, errors.Join(scanner.Err(), cmd.Wait())
}

var escape = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")

// clean returns the text without colors, cut to the picture's width.
func clean(text string) string {
	text = strings.ReplaceAll(escape.ReplaceAllString(text, ""), "\t", "    ")
	if runes := []rune(text); len(runes) > columns {
		text = string(runes[:columns-1]) + "…"
	}
	return text
}

// draw returns the picture. Each line has its place on a long sheet, which moves up by a line when the next one comes.
// Where nothing moves, as on paper or for readers who want less motion, the last lines are shown.
func draw(title string, lines []line) string {
	starts, total := schedule(lines)
	width, height := 2*margin+columns*8, bar+2*margin+rows*lineHeight
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Recording of %s">`+"\n",
		width, height, html.EscapeString(title))
	fmt.Fprintf(&b, "<style>\n.s{animation:s %.2fs step-end infinite;transform:translateY(%dpx)}\n@keyframes s{\n",
		total.Seconds(), shift(len(lines)))
	for i, start := range starts {
		fmt.Fprintf(&b, "%.3f%%{transform:translateY(%dpx)}\n", 100*start.Seconds()/total.Seconds(), shift(i+1))
	}
	fmt.Fprint(&b, "}\n@media (prefers-reduced-motion){.s{animation:none}}\n"+
		"text{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#d7e0e4}\n"+
		".p{fill:#4db6ac;font-weight:bold}.g{fill:#81c784}.r{fill:#ff8a80}.h{fill:#ffd54f}\n</style>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#1c2529"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<circle cx="20" cy="17" r="6" fill="#546e7a"/><circle cx="40" cy="17" r="6" fill="#546e7a"/>`+
		`<circle cx="60" cy="17" r="6" fill="#546e7a"/><text x="%d" y="22" text-anchor="middle">%s</text>`+"\n",
		width/2, html.EscapeString(title))
	fmt.Fprintf(&b, `<svg x="%d" y="%d" width="%d" height="%d"><g class="s">`+"\n", margin, bar, width-2*margin, rows*lineHeight+1)
	for i, line := range lines {
		if line.text != "" {
			fmt.Fprintf(&b, `<text xml:space="preserve" y="%d"%s>%s</text>`+"\n", (i+1)*lineHeight-5, class(line.text), html.EscapeString(line.text))
		}
	}
	b.WriteString("</g></svg>\n</svg>\n")
	return b.String()
}

// shift returns how far the sheet is moved when n lines are shown.
func shift(n int) int { return (rows - n) * lineHeight }

// schedule returns when each line appears, and how long all of it takes.
func schedule(lines []line) (starts []time.Duration, total time.Duration) {
	for i, line := range lines {
		if i > 0 {
			total += min(max(line.after, shortest), longest)
		}
		starts = append(starts, total)
	}
	return starts, total + rest
}

var (
	admitted = regexp.MustCompile(`^ +\d+ +200 `)
	denied   = regexp.MustCompile(`^ +\d+ +429 `)
)

// class returns the attribute that colors the line.
func class(text string) string {
	switch {
	case strings.HasPrefix(text, "$ "):
		return ` class="p"`
	case admitted.MatchString(text):
		return ` class="g"`
	case denied.MatchString(text):
		return ` class="r"`
	case text != "" && text[0] != ' ':
		return ` class="h"`
	}
	return ""
}
