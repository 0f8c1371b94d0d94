package descriptors

import (
	"net/netip"
	"regexp"
	"strings"
)

// checkDescriptor checks what can be checked of a descriptor without its limits and other rules.
func (c *Builder) checkDescriptor(d *Descriptor) {
	switch {
	case d.Key == "" && !d.Invalid:
		c.Errorf(d.At, "the key is empty; write the name of a descriptor entry that Envoy sends")
	case strings.Contains(d.Key, "*") && !d.Lenient:
		c.Tolerate(d.At, "only an entry with this very key matches",
			"key %s contains *, which stands for any characters only in value; write the whole key", d.Key)
	}
	if d.RateLimit != nil && d.RateLimits != nil {
		c.Errorf(d.At, "rate_limit and rate_limits are both given; move the one into the other")
	}
	switch form := d.Match.Form; {
	case form == "":
		if d.ShareThreshold && !strings.Contains(d.Value, "*") {
			c.Tolerate(d.ShareAt, "it means nothing",
				"share_threshold goes with a value that contains *, or with values, values_file, cidr or regex, whose "+
					"requests then share one counter; remove it, or write one of these")
		}
	case d.Value != "":
		c.Errorf(d.Match.At, "value and %s are both given; write two descriptors", form)
	case len(d.Match.Items) == 0 && !d.Invalid:
		c.Errorf(d.Match.At, "%s is empty; write at least one item, or leave it out", form)
	}
	if d.Response != nil {
		c.checkResponse(d.Response)
	}
	if !d.Lenient {
		c.warnLiteral(d)
	}
}

// warnLiteral warns of values that look like blocks of addresses or regexes: they are matched as text, and so hardly
// ever.
func (c *Builder) warnLiteral(d *Descriptor) {
	switch {
	case d.Value != "":
		c.warnLiteralText("value", d.Value, d.ValueAt)
	case d.Match.Form == FormValues:
		for _, item := range d.Match.Items {
			c.warnLiteralText("an item of values", item.Text, item.At)
		}
	}
}

func (c *Builder) warnLiteralText(what, text string, at Position) {
	switch {
	case looksLikeBlock(text):
		c.Warnf(WarnLiteral, at, "%s %s matches only this text, and not the addresses in it; did you mean cidr: [%s]?",
			what, Shown(text), Shorten(text))
	case looksLikeRegex(text):
		c.Warnf(WarnLiteral, at, "%s %s is no regular expression: only * is special in it; did you mean regex: '%s'?",
			what, Shown(text), strings.ReplaceAll(Shorten(text), "'", "''"))
	}
}

func looksLikeBlock(text string) bool {
	if c := text[0]; (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') && c != ':' {
		return false
	}
	slash := strings.IndexByte(text, '/')
	if slash < 2 || slash > 45 || len(text) > slash+4 {
		return false
	}
	_, err := netip.ParsePrefix(text)
	return err == nil
}

// regexSigns are parts of a value that hardly anything but a regex has.
var regexSigns = []string{
	".+", "/.*", `\d`, `\w`, `\s`, `\.`, `\/`, "[0-9", "[a-z", "[A-Z", "[^", "(?", ")*", "]+", "]*",
}

func looksLikeRegex(text string) bool {
	if len(text) > maxRegexBytes || !strings.ContainsAny(text, `^$\[(+.`) {
		return false
	}
	signs := strings.HasPrefix(text,
		"^") && len(text) > 1 || strings.HasSuffix(text, "$") && strings.ContainsAny(text, "*+[(")
	for _, sign := range regexSigns {
		signs = signs || strings.Contains(text, sign)
	}
	if !signs {
		return false
	}
	_, err := regexp.Compile(text)
	return err == nil
}
