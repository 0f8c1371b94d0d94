package actions

import (
	"fmt"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// Plan is a compiled list of rate_limits. It is immutable and safe for concurrent use.
type Plan struct {
	onRequest, onStreamDone Phase
}

// Phase is the part of a Plan for one event of a request: its arrival, or the end of its stream. It lists the parts of
// the request that it reads, so that a caller can fetch them together.
type Phase struct {
	// Headers and ResponseHeaders are unique names of headers, in lower case.
	Headers, ResponseHeaders []string
	// Metadata are unique keys.
	Metadata []*MetadataKey
	// RemoteAddress, SourceCluster and DestinationCluster report whether the phase reads the client's address, the name of
	// Envoy's own cluster and the name of the route's cluster.
	RemoteAddress, SourceCluster, DestinationCluster bool

	limits []limit
}

// Descriptor is the descriptor of a request for one entry of rate_limits.
type Descriptor struct {
	// Entries may be empty: Envoy sends a descriptor without entries if all of its actions skip an absent value.
	Entries []descriptors.Entry
	// Limit replaces the rule's limit, unless its Window is 0.
	Limit decide.OwnLimit
	// HitsAddend is the descriptor's own hits_addend: negative with is_negative_hits; 0 is a peek.
	HitsAddend int64
	// HasHitsAddend reports whether HitsAddend is set. Otherwise the request's cost applies, usually 1.
	HasHitsAddend bool
	// XRateLimitHeaders is the entry's x_ratelimit_option.
	XRateLimitHeaders routev3.RateLimit_XRateLimitOption
}

// Cost returns the descriptor's cost in hits: its HitsAddend if it is set, else ofRequest.
func (d *Descriptor) Cost(ofRequest int64) int64 {
	if d.HasHitsAddend {
		return d.HitsAddend
	}
	return ofRequest
}

// limit is one compiled entry of rate_limits.
type limit struct {
	actions           []action
	hits              *hitsAddend // nil if there is none
	own               decide.OwnLimit
	xRateLimitHeaders routev3.RateLimit_XRateLimitOption
}

// Config is a message of Envoy with rate_limits, for a route or for the filter.
type Config interface{ GetRateLimits() []*routev3.RateLimit }

// New compiles rate_limits. The error has the path of the invalid or unsupported field, such as
// rate_limits[2].actions[1].
func New(c Config) (*Plan, error) {
	p := new(Plan)
	for i, rl := range c.GetRateLimits() {
		of := &p.onRequest
		if rl.GetApplyOnStreamDone() {
			of = &p.onStreamDone
		}
		l, err := of.compile(fmt.Sprintf("rate_limits[%d]", i), rl)
		if err != nil {
			return nil, err
		}
		of.limits = append(of.limits, l)
	}
	return p, nil
}

func (p *Phase) compile(at string, rl *routev3.RateLimit) (l limit, err error) {
	if err := checkLimit(at, rl); err != nil {
		return l, err
	}
	l.xRateLimitHeaders = rl.GetXRatelimitOption()
	for i, a := range rl.GetActions() {
		compiled, err := p.compileAction(fmt.Sprintf("%s.actions[%d]", at, i), a)
		if err != nil {
			return l, err
		}
		l.actions = append(l.actions, compiled)
	}
	if l.hits, err = p.compileHits(at+".hits_addend", rl.GetHitsAddend()); err != nil {
		return l, err
	}
	l.own, err = compileOverride(at+".limit", rl.GetLimit())
	return l, err
}

// OnRequest returns the entries that apply before the request is forwarded.
func (p *Plan) OnRequest() *Phase { return &p.onRequest }

// OnStreamDone returns the entries with apply_on_stream_done, which apply when the request's stream ends.
func (p *Plan) OnStreamDone() *Phase { return &p.onStreamDone }

// IsEmpty reports whether the phase has no entries of rate_limits.
func (p *Phase) IsEmpty() bool { return len(p.limits) == 0 }

// Descriptors appends to out the descriptors that Envoy would send in this phase. It reuses the memory between the
// length and the capacity of out, so a caller that passes the previous slice as out[:0] allocates only the values.
func (p *Phase) Descriptors(req *Request, out []Descriptor) []Descriptor {
	for i := range p.limits {
		n := len(out)
		if n < cap(out) {
			out = out[:n+1]
			out[n] = Descriptor{Entries: out[n].Entries[:0]}
		} else {
			out = append(out, Descriptor{})
		}
		if !p.limits[i].fill(req, &out[n]) {
			out = out[:n]
		}
	}
	return out
}

// fill fills d. It returns false if Envoy would send no descriptor.
func (l *limit) fill(req *Request, d *Descriptor) bool {
	for i := range l.actions {
		a := &l.actions[i]
		value, found := a.value(req)
		switch found {
		case yes:
			d.Entries = append(d.Entries, descriptors.Entry{Key: a.key, Value: value})
		case no:
			return false
		case skip:
		}
	}
	if l.hits != nil && !l.hits.fill(req, d) {
		return false
	}
	d.Limit, d.XRateLimitHeaders = l.own, l.xRateLimitHeaders
	return true
}

// header records that the phase reads a request header, and returns the header's name in Headers.
func (p *Phase) header(name string) string {
	name = string(appendLower(nil, []byte(name)))
	if name == "host" {
		name = ":authority" // Envoy's name for the Host header
	}
	return addOnce(&p.Headers, name)
}

// responseHeader is header for response headers.
func (p *Phase) responseHeader(name string) string {
	return addOnce(&p.ResponseHeaders, string(appendLower(nil, []byte(name))))
}

// addOnce adds the name unless names contains it, and returns the name in names.
func addOnce(names *[]string, name string) string {
	if i := slices.Index(*names, name); i >= 0 {
		return (*names)[i]
	}
	*names = append(*names, name)
	return name
}
