package xds

import (
	"strconv"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// maxDepth bounds the levels of a domain. Envoy Gateway sends at most 144: 128 headers and 16 query parameters.
const maxDepth = 200

// IsFile reports whether a Source created the file.
func IsFile(f reload.File) bool { return strings.HasPrefix(f.Name, Scheme) }

// Add adds the rules of a file from a Source.
func Add(b *descriptors.Builder, f reload.File) {
	config := &ratelimitv3.RateLimitConfig{}
	if err := proto.Unmarshal(f.Data, config); err != nil {
		b.Errorf(descriptors.Position{File: f.Name}, "it cannot be decoded: %s", err)
		return
	}
	add(b, f.Name, config)
}

// add adds the rules of a domain. Error messages begin with file.
func add(b *descriptors.Builder, file string, config *ratelimitv3.RateLimitConfig) {
	c := converter{b: b, file: file}
	before := b.Problems()
	all := c.list(in(file+": ", config.GetDescriptors()), 1, 0)
	if b.Problems() == before { // otherwise the rules would be incomplete
		b.Add(config.GetDomain(), all...)
	}
}

type converter struct {
	b        *descriptors.Builder
	file     string
	pathText int
	tooMuch  bool // MaxPathText is exceeded, and reported
}

type located struct {
	*ratelimitv3.RateLimitDescriptor

	at string
}

// in returns the messages of a list with their positions.
func in(above string, list []*ratelimitv3.RateLimitDescriptor) []located {
	all := make([]located, len(list))
	for i, d := range list {
		all[i] = located{d, above + "descriptors[" + strconv.Itoa(i) + "]"}
	}
	return all
}

// list converts the descriptors of one level. It merges descriptors with the same key and value, which Envoy Gateway
// sends if one rule limits an address block as a whole and another rule limits each address in it.
func (c *converter) list(all []located, depth, path int) (out []*descriptors.Descriptor) {
	type entry struct{ key, value string }
	index := make(map[entry]int, len(all))
	same := make([][]located, 0, len(all))
	for _, d := range all {
		e := entry{d.GetKey(), d.GetValue()}
		i, ok := index[e]
		if !ok {
			i = len(same)
			index[e], same = i, append(same, nil)
		}
		same[i] = append(same[i], d)
	}
	for _, group := range same {
		if d := c.descriptor(group, depth, path); d != nil {
			out = append(out, d)
		}
	}
	return out
}

// descriptor converts messages with the same key and value to one descriptor. The first limit counts, with the modes of
// its message, and the descriptors below all messages are kept. It returns nil if a bound is exceeded.
func (c *converter) descriptor(same []located, depth, path int) *descriptors.Descriptor {
	d := same[0]
	path += len(d.GetKey()) + len(d.GetValue()) + len(" > =")
	if c.pathText += path + len(d.at); c.pathText > descriptors.MaxPathText {
		if !c.tooMuch {
			c.b.Errorf(descriptors.Position{File: d.at}, "the names of the rules up to here take more than %d MiB, since each "+
				"has the keys and values of all levels above it; use fewer levels, or shorter keys", descriptors.MaxPathText>>20)
		}
		c.tooMuch = true
		return nil
	}
	if depth > maxDepth {
		c.b.Errorf(descriptors.Position{File: d.at}, "more than %d levels of descriptors; use fewer", maxDepth)
		return nil
	}
	var below []located
	for _, other := range same {
		switch {
		case other.GetRateLimit() == nil:
		case d.GetRateLimit() == nil:
			d = other
		case d != other:
			c.b.Warnf(descriptors.WarnTolerated, descriptors.Position{File: other.at},
				"key and value are the same as in %s, whose limit "+
					"applies; the limit here is not used; remove one of the two", strings.TrimPrefix(d.at, c.file+": "))
		}
		below = append(below, in(other.at+".", other.GetDescriptors())...)
	}
	out := c.fields(d)
	out.Descriptors = c.list(below, depth+1, path)
	return out
}

// fields converts a message without the descriptors below it.
func (c *converter) fields(d located) *descriptors.Descriptor {
	here := descriptors.Position{File: d.at}
	out := &descriptors.Descriptor{
		Key: d.GetKey(), Value: d.GetValue(), Lenient: true,
		ShadowMode: d.GetShadowMode(), QuotaMode: d.GetQuotaMode(), DetailedMetric: d.GetDetailedMetric(),
		At: here, ValueAt: here, ShareAt: here,
	}
	if d.GetMetadata() != nil {
		out.Metadata = d.GetMetadata().AsMap()
		if _, err := d.GetMetadata().MarshalJSON(); err != nil { // protobuf's own error text differs between builds
			c.b.Errorf(here, "metadata: a number is NaN or infinite, which JSON does not have; remove it")
		}
	}
	if d.GetRateLimit() != nil {
		out.RateLimit = c.limit(d.at+".rate_limit", d.GetRateLimit())
	}
	return out
}

// limit converts a limit. An absent requests_per_unit is 0, as in all of protobuf.
func (c *converter) limit(at string, l *ratelimitv3.RateLimitPolicy) *descriptors.RateLimit {
	here := descriptors.Position{File: at}
	out := &descriptors.RateLimit{Name: l.GetName(), Unlimited: l.GetUnlimited(), At: here}
	for _, r := range l.GetReplaces() {
		out.Replaces = append(out.Replaces, descriptors.Text{Text: r.GetName(), At: here})
	}
	if out.Unlimited {
		return out // unit and requests_per_unit have no meaning then
	}
	unit, ok := descriptors.ParseUnit(l.GetUnit().String())
	if !ok {
		out.Invalid = true
		c.b.Errorf(descriptors.Position{File: at + ".unit"},
			"unit is %s; use SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR, or unlimited", l.GetUnit())
	}
	out.Unit, out.Params.Limit = unit, int64(l.GetRequestsPerUnit())
	out.Fields = []descriptors.Field{{Name: "requests_per_unit", At: here}, {Name: "unit", At: here}}
	return out
}
