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

// Phase is the part of a Plan for one moment of a request: when it arrives, or when its stream is done. It names what
// it reads of the request, so that a caller can fetch that in one go.
type Phase struct {
	// Headers and ResponseHeaders are names of headers, in lower case, each once.
	Headers, ResponseHeaders []string
	// Metadata are keys, each once.
	Metadata []*MetadataKey
	// RemoteAddress, SourceCluster and DestinationCluster report whether the client's address is read, and the names of
	// Envoy's own cluster and of the route's.
	RemoteAddress, SourceCluster, DestinationCluster bool

	limits []limit
}

// Descriptor is what one entry of rate_limits makes of a request.
type Descriptor struct {
	// Entries may be empty: Envoy sends a descriptor without entries if all of its actions skip an absent value.
	Entries []descriptors.Entry
	// Limit is the limit that replaces the rule's. A Window of 0 is none.
	Limit decide.OwnLimit
	// HitsAddend is the descriptor's own hits_addend. It is below 0 with is_negative_hits, and 0 only looks.
	HitsAddend int64
	// HasHitsAddend reports whether there is a HitsAddend. Without one the request's own cost applies, usually 1.
	HasHitsAddend bool
	// XRateLimitHeaders is the entry's x_ratelimit_option.
	XRateLimitHeaders routev3.RateLimit_XRateLimitOption
}

// Cost returns what the descriptor costs in hits: its own HitsAddend if it has one, else ofRequest.
func (d *Descriptor) Cost(ofRequest int64) int64 {
	if d.HasHitsAddend {
		return d.HitsAddend
	}
	return ofRequest
}

// limit is one compiled entry of rate_limits.
type limit struct {
	actions           []action
	hits              *hitsAddend // nil if none
	own               decide.OwnLimit
	xRateLimitHeaders routev3.RateLimit_XRateLimitOption
}

// Config is a configuration of Envoy with rate_limits: a route, or that of its filter.
type Config interface{ GetRateLimits() []*routev3.RateLimit }

// New compiles rate_limits. The error names the path of what is wrong or not supported, such as
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

// OnStreamDone returns the entries with apply_on_stream_done, which apply when the request's stream has ended.
func (p *Plan) OnStreamDone() *Phase { return &p.onStreamDone }

// IsEmpty reports whether the phase has no entries of rate_limits.
func (p *Phase) IsEmpty() bool { return len(p.limits) == 0 }

// Descriptors appends to out the descriptors that Envoy would send at this moment. It reuses the memory of the
// descriptors between the length and the capacity of out, so a caller that passes last time's slice as out[:0]
// allocates the values alone.
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

// fill reports whether the request has the descriptor.
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

// header notes that the phase reads a request header, and returns its name in Headers.
func (p *Phase) header(name string) string {
	name = string(appendLower(nil, []byte(name)))
	if name == "host" {
		name = ":authority" // Envoy's name for it
	}
	return addOnce(&p.Headers, name)
}

// responseHeader is header for one of the response.
func (p *Phase) responseHeader(name string) string {
	return addOnce(&p.ResponseHeaders, string(appendLower(nil, []byte(name))))
}

// addOnce adds the name unless it is there, and returns the one that is.
func addOnce(names *[]string, name string) string {
	if i := slices.Index(*names, name); i >= 0 {
		return (*names)[i]
	}
	*names = append(*names, name)
	return name
}
