package rulefile

import (
	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

func (r *reader) documentSchema() *schema[document] {
	s := newSchema[document]("a rule file")
	s.required(r,
		"domain", "the domain that Envoy's rate limit filter sends", func(d *document) *string { return &d.domain })
	s.field("descriptors", listShape(ref("descriptor"), 1), func(n *yaml.Node, d *document) {
		d.descriptors, d.listAt = r.readDescriptors(n, r.taken), r.at(n)
	})
	// Envoy Gateway writes name; Weir ignores it.
	s.field("name", textShape, func(n *yaml.Node, _ *document) { r.text(n) })
	s.field("defaults", shape{}, func(n *yaml.Node, _ *document) {
		r.Errorf(r.at(n), "write defaults: at the beginning of a line, in a document of its own")
	})
	forPeople(r, s)
	s.synonyms = documentSynonyms
	return s
}

func (r *reader) descriptorSchema() *schema[descriptors.Descriptor] {
	type Descriptor = descriptors.Descriptor
	s := newSchema[Descriptor]("a descriptor")
	flag := func(name string, of func(d *Descriptor) *bool) {
		s.field(name, booleanShape, func(n *yaml.Node, d *Descriptor) { *of(d) = r.boolean(n) })
	}
	s.required(r, "key", "the name of a descriptor entry that Envoy sends", func(d *Descriptor) *string { return &d.Key })
	s.field("value", textShape, func(n *yaml.Node, d *Descriptor) { d.Value, d.ValueAt = r.text(n), r.at(n) })
	s.field("rate_limit", ref("rated_limit"), func(n *yaml.Node, d *Descriptor) {
		if !isNull(resolve(n)) { // an empty rate_limit means no limit, as in envoyproxy/ratelimit
			d.RateLimit = r.readRateLimit(n)
		}
	})
	s.field("rate_limits", listShape(ref("rated_limit"), 1), func(n *yaml.Node, d *Descriptor) {
		d.RateLimits = r.readRateLimits(n)
	})
	s.field("descriptors", listShape(ref("descriptor"), 0), func(n *yaml.Node, d *Descriptor) {
		d.Descriptors = r.readDescriptors(n, 0)
	})
	flag("shadow_mode", func(d *Descriptor) *bool { return &d.ShadowMode })
	flag("quota_mode", func(d *Descriptor) *bool { return &d.QuotaMode })
	flag("detailed_metric", func(d *Descriptor) *bool { return &d.DetailedMetric })
	flag("value_to_metric", func(d *Descriptor) *bool { return &d.ValueToMetric })
	s.field("share_threshold", booleanShape, func(n *yaml.Node, d *Descriptor) {
		d.ShareThreshold, d.ShareAt = r.boolean(n), r.at(n)
	})
	flag("hash_values", func(d *Descriptor) *bool { return &d.HashValues })
	s.field("metadata", objectShape, func(n *yaml.Node, d *Descriptor) { d.Metadata = r.metadata(n) })
	s.field("description", textShape, func(n *yaml.Node, d *Descriptor) { d.Description = r.text(n) })
	s.field("owner", textShape, func(n *yaml.Node, d *Descriptor) { d.Owner = r.text(n) })
	s.extra = func(name string, n *yaml.Node, d *Descriptor) {
		if d.Extra == nil {
			d.Extra = map[string]any{}
		}
		d.Extra[name] = r.value(n)
	}
	addForms(r, s)
	s.field("response", ref("response"), func(n *yaml.Node, d *Descriptor) { d.Response = r.response(n) })
	s.synonyms = descriptorSynonyms
	return s
}

// readDescriptors reads a list of descriptors without its first `skip` items.
func (r *reader) readDescriptors(n *yaml.Node, skip int) (all []*descriptors.Descriptor) {
	r.list(n, "descriptors", func(item *yaml.Node) {
		if skip > 0 {
			skip--
			return
		}
		all = append(all, r.readDescriptor(item))
	})
	return all
}

func (r *reader) readDescriptor(n *yaml.Node) *descriptors.Descriptor {
	d := &descriptors.Descriptor{At: r.at(n)}
	readFields(r, n, r.descriptorFields, d)
	d.Invalid = d.Invalid || d.Key == ""
	return d
}

func (r *reader) responseSchema() *schema[descriptors.Response] {
	type Response = descriptors.Response
	s := newSchema[Response]("response")
	headers := shape{"type": objectShape["type"], "additionalProperties": textShape}
	s.field("headers", headers, func(n *yaml.Node, into *Response) {
		into.Headers, into.HeadersAt = r.headers(n), r.at(n)
	})
	s.field("body", textShape, func(n *yaml.Node, into *Response) { into.Body, into.BodyAt = r.text(n), r.at(n) })
	return s
}

// response reads `response`. It returns nil if there is none.
func (r *reader) response(n *yaml.Node) *descriptors.Response {
	if isNull(resolve(n)) {
		return nil
	}
	var res descriptors.Response
	before := r.Problems()
	readFields(r, n, r.responseFields, &res)
	if len(res.Headers) == 0 && res.Body == "" && r.Problems() == before {
		r.Errorf(r.at(n), "response is empty; write headers: or body:, or leave it out")
	}
	return &res
}

func (r *reader) headers(n *yaml.Node) (all []descriptors.Header) {
	if isNull(resolve(n)) {
		return nil
	}
	r.mapping(n, "headers", func(key, value *yaml.Node) {
		r.field = "a header's value"
		all = append(all, descriptors.Header{
			Name: key.Value, Value: r.text(value), NameAt: r.at(key), ValueAt: r.at(value),
		})
	})
	return all
}
