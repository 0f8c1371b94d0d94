package explain

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// Text writes the report as text.
func (r *Report) Text(w io.Writer) error {
	t := &page{}
	t.line("domain %s", quoted(r.Domain))
	for i := range r.Descriptors {
		t.line("")
		t.descriptor(&r.Descriptors[i])
	}
	t.line("")
	t.answer(r)
	_, err := io.WriteString(w, t.String())
	return err
}

type page struct{ strings.Builder }

func (t *page) line(format string, args ...any) {
	fmt.Fprintf(t, format+"\n", args...)
}

func (t *page) descriptor(d *Descriptor) {
	entries := make([]string, len(d.Entries))
	for i, e := range d.Entries {
		entries[i] = quoted(e.Key + "=" + e.Value)
	}
	t.line("descriptor %s", strings.Join(entries, ","))
	for i, e := range d.Entries {
		entry := quoted(e.Key + "=" + e.Value)
		reaches := "not reached"
		if i == len(d.Levels) {
			reaches = "no rule"
		} else if i < len(d.Levels) {
			l := &d.Levels[i]
			reaches = how[l.By] + " " + descriptors.Located(l.Rule, l.Source)
			if len(l.Also) > 0 {
				reaches += "; " + strings.Join(l.Also, ", ") + " would match as well, but comes later"
			}
		}
		t.line("  %d  %s: %s", i+1, entry, reaches)
	}
	if d.Rule != nil {
		t.rule(d.Rule)
	}
	for i := range d.Limits {
		t.limit(&d.Limits[i])
	}
	switch {
	case d.Message != "" && len(d.Limits) == 0:
		t.line("  no limit: %s", d.Message)
	case d.Message != "":
		t.line("  because  %s", d.Message)
	}
}

// how describes a Level.By.
var how = map[string]string{
	"value":   "exactly the value of",
	"pattern": "the pattern of",
	"cidr":    "an address in a block of",
	"regex":   "the regex of",
	"key":     "any value of",

	"too_long": "denied by the rule",
}

func (t *page) rule(r *Rule) {
	t.line("  rule     %s", descriptors.Located(r.Path, r.Source))
	switch r.Mode {
	case "shadow":
		t.line("           shadow_mode: the rule counts, but never denies")
	case "quota":
		t.line("           quota_mode: the rule denies only if all quotas of the request are over")
	}
	for _, about := range []struct{ name, value string }{{"description", r.Description}, {"owner", r.Owner}} {
		if about.value != "" {
			t.line("           %s: %s", about.name, about.value)
		}
	}
}

func (t *page) limit(l *Limit) {
	name := ""
	if l.Name != "" {
		name = quoted(l.Name) + ", "
	}
	t.line("  limit    %s%s", name, l.Text)
	t.line("           counter %s", l.Key)
	if l.ReplacedBy != "" {
		t.line("           replaced by %s: does not count in this request", l.ReplacedBy)
		return
	}
	text := "fits"
	if !l.Fits {
		text = "does not fit"
	}
	text = fmt.Sprintf("%s (%s), %d remaining", text, l.Outcome, l.Remaining)
	if !l.Fits {
		text += ", " + after("fits", l.RetryAfter)
	}
	if l.Wait > 0 {
		text += ", is delayed by " + duration(l.Wait)
	}
	if l.ResetAfter > 0 {
		text += ", fully available after " + duration(l.ResetAfter)
	}
	t.line("           %s", text)
}

func (t *page) answer(r *Report) {
	counters := "with empty counters"
	if r.Live {
		counters = "with the current counters"
	}
	hits := ""
	if r.Hits > 1 {
		hits = fmt.Sprintf(" at a cost of %d", r.Hits)
	}
	a := &r.Answer
	t.line("response   %s%s, %s%s", a.Code, hits, counters, outcome(a))
	if a.StoreError != "" {
		t.line("           the store does not respond, so each limit's on_store_failure decides: %s", a.StoreError)
	}
	for _, h := range a.Headers {
		t.line("           header %s: %s", h.Name, h.Value)
	}
	if a.Body != "" {
		t.line("           body %s", strconv.Quote(a.Body))
	}
}

func outcome(a *Answer) (text string) {
	if len(a.DeniedBy) > 0 {
		text = ", denied by " + strings.Join(a.DeniedBy, " and ")
	}
	if a.Code == OverLimit {
		text += ", " + after("passes", a.RetryAfter)
	}
	if a.Wait > 0 {
		text += ", delayed by up to " + duration(a.Wait)
	}
	return text
}

// after returns a text about the time after which a denied request or hit passes.
func after(what string, wait *float64) string {
	if wait == nil {
		return "never " + what
	}
	return what + " after " + duration(*wait)
}

func duration(s float64) string {
	return cmp.Or(descriptors.FormatDuration(time.Duration(s*float64(time.Second)).Round(time.Microsecond)), "0s")
}

// quoted quotes a text if it has spaces, commas, quotes or invisible characters.
func quoted(s string) string {
	if strings.ContainsAny(s, " ,\"") || strconv.Quote(s) != `"`+s+`"` {
		return strconv.Quote(s)
	}
	return s
}
