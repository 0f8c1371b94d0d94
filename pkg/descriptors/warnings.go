package descriptors

import (
	"strings"
	"time"
)

// warnUnreachable warns, when the second of the two is placed, of a rule for a key alone beside a pattern that matches
// every value. (A pattern below such a pattern is an error.)
func (c *Builder) warnUnreachable(b *Branch, d *Descriptor) {
	if b.every == nil || b.any == nil {
		return
	}
	switch all := b.every; {
	case d.Value == "" && d.Match.Form == "":
		c.Warnf(WarnUnreachable, d.At, "%s is never reached: value %s at %s matches every value; remove one of the two",
			b.any.rule.Path, all.text, all.to.rule.Source)
	case d.Value != "" && strings.Trim(d.Value, "*") == "":
		c.Warnf(WarnUnreachable, d.ValueAt,
			"value %s matches every value, so that %s at %s is never reached; remove one of the two",
			d.Value, b.any.rule.Path, b.any.rule.Source)
	}
}

// envoyTimeout is how long Envoy waits for an answer unless its filter says otherwise.
const envoyTimeout = 20 * time.Millisecond

// warnWait warns of answers that come when Envoy no longer waits for them.
func (c *Builder) warnWait(l *checked) {
	if wait := l.policy.MaxWait(); wait > envoyTimeout {
		c.Warnf(WarnMaxWait, l.fieldAt("max_wait"),
			"requests are delayed by up to %s, but Envoy waits only %s unless its rate limit "+
				"filter has a longer timeout; raise that, or write a max_wait below it", wait, envoyTimeout)
	}
}
