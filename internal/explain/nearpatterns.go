package explain

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// nearestPatterns are the patterns and regexes that lack least of the value, in file order where they lack as much.
func nearestPatterns(b *descriptors.Branch, value string) []*descriptors.Pattern {
	lower := strings.ToLower(value)
	lacks := map[*descriptors.Pattern]int{}
	all := slices.DeleteFunc(b.Patterns(), func(p *descriptors.Pattern) bool {
		prefix, suffix := p.FixedEnds()
		lacks[p] = len(prefix) - commonFolded(lower, prefix, fromBegin) + len(suffix) - commonFolded(lower, suffix, fromEnd)
		return p.Kind() == descriptors.ByCIDR
	})
	slices.SortStableFunc(all, func(a, b *descriptors.Pattern) int { return cmp.Compare(lacks[a], lacks[b]) })
	return all[:min(len(all), maxListedNear)]
}

// missing says why the value does not match.
func missing(p *descriptors.Pattern, value string) string {
	prefix, suffix := p.FixedEnds()
	isRegex := p.Kind() == descriptors.ByRegex
	folded := ""
	if !isRegex && matchesText(strings.ToLower(p.Text()), strings.ToLower(value)) {
		folded = ": upper and lower case differ, and they count"
	}
	switch {
	case !strings.HasPrefix(value, prefix):
		return "does not begin with " + quotedShort(prefix) + folded
	case !strings.HasSuffix(value, suffix):
		return "does not end with " + quotedShort(suffix) + folded
	case isRegex:
		return "does not match as a whole the regex " + quotedShort(p.Text())
	}
	for text := range strings.SplitSeq(p.Text(), "*") {
		if !strings.Contains(value, text) {
			return "lacks " + quotedShort(text) + folded
		}
	}
	return "does not have the parts of " + quotedShort(p.Text()) + " one behind the other" + folded
}

// matchesText reports whether the value matches the text, in which each * stands for any characters or none.
func matchesText(text, value string) bool {
	texts := strings.Split(text, "*")
	last := len(texts) - 1
	rest, ok := strings.CutPrefix(value, texts[0])
	for _, text := range texts[1:last] {
		if ok {
			_, rest, ok = strings.Cut(rest, text)
		}
	}
	return ok && strings.HasSuffix(rest, texts[last])
}

// nearBlocks says why an address is in no block.
func (e *matcher) nearBlocks(b *descriptors.Branch, value string) {
	if !hasSome(b.Blocks()) {
		return
	}
	if host, err := netip.ParseAddrPort(value); err == nil {
		if all := b.Matches(host.Addr().String()); len(all) > 0 {
			r := all[0].To.Rule()
			e.add("cidr", r, "%s matches the address without its port; send only the address", at(r))
			return
		}
	}
	addr, err := netip.ParseAddr(value)
	var nearest netip.Prefix
	var r *descriptors.Rule
	common, seen := -1, 0
	for prefix, p := range b.Blocks() {
		if seen++; seen > maxTries {
			break
		}
		if n := commonBits(prefix.Addr(), addr.Unmap()); n > common {
			nearest, r, common = prefix, p.Rule(), n
		}
	}
	if err != nil {
		e.add("cidr", r, "%s matches addresses only, and the value is none", at(r))
		return
	}
	e.add("cidr", r, "%s does not match, because the address is not in %s", at(r), nearest)
}

// commonBits is how many bits two addresses of one family begin with alike; 0 of two families.
func commonBits(a, b netip.Addr) (n int) {
	if !b.IsValid() || a.Is4() != b.Is4() {
		return 0
	}
	for n = a.BitLen(); n > 0; n-- {
		if p, err := b.Prefix(n); err == nil && p.Contains(a) {
			return n
		}
	}
	return 0
}
