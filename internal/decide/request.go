package decide

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/take"
)

// Request is a domain and descriptors to decide on. Decider.NewRequest creates it. Its memory is bounded, because it
// only counts descriptors and entries beyond the maximum. It is not safe for concurrent use.
type Request struct {
	// Ctx is the context of the caller: see storekit.Call. NewRequest sets a context that never ends. So does Decide for
	// the end of a request with a reservation, which counts even if its caller leaves.
	Ctx context.Context //nolint:containedctx // each request of a batch has its own context
	// Since is when the caller began to wait. Zero means the time at which the request is decided.
	Since       time.Time
	Domain      string
	Descriptors []Descriptor

	// Verdict is the decision, valid if Err is nil.
	Verdict Verdict
	Err     error

	o       *Options
	added   int                 // number of descriptors, including those beyond MaxDescriptors, which are not kept
	entries []descriptors.Entry // entries of all Descriptors
	call    take.Call
	asks    bool // call must be sent to the store
	isTried bool // Try queried the stages of the store, and none answered
}

// Descriptor is one descriptor of a request.
type Descriptor struct {
	Entries []descriptors.Entry
	// Cost in hits: above 0 charges, 0 peeks, below 0 refunds.
	Cost int64
	// Own is the limit that the request itself carries for this descriptor.
	Own OwnLimit

	added int    // number of entries, including those beyond MaxEntries, which are not kept
	start string // value of the entry StartKey; "" without the entry
	hint  string // value of the entry HintKey
}

// EndsRequest reports whether the descriptor has the entry StartKey, which makes it the end of a request.
func (d *Descriptor) EndsRequest() bool { return d.start != "" }

// OwnLimit is a rate that a request carries: the rule's first limit, with this rate, replaces all. Window 0 means none.
type OwnLimit struct {
	Requests uint32
	Window   time.Duration
}

// NewRequest returns an empty request for this Decider.
func (d *Decider) NewRequest() *Request { return &Request{Ctx: context.Background(), o: &d.o} }

// CountsInFlight reports, after Try, whether the request counts as in flight once it is admitted.
func (r *Request) CountsInFlight() bool { return r.Verdict.anyHit(limit.CountsInFlight) }

// MayWait reports, after Try, whether a limit may delay the request.
func (r *Request) MayWait() bool { return r.Verdict.anyHit(canWait) }

// MaxDescriptors returns the maximum number of descriptors per request.
func (d *Decider) MaxDescriptors() int { return d.o.MaxDescriptors }

// AddDescriptor begins a descriptor, to which AddEntry adds entries. It returns nil if the request has too many.
func (r *Request) AddDescriptor() *Descriptor {
	if r.added++; r.added > r.o.MaxDescriptors {
		return nil
	}
	r.Descriptors = append(r.Descriptors, Descriptor{})
	return &r.Descriptors[len(r.Descriptors)-1]
}

// AddEntry adds an entry to the last descriptor. The entries StartKey and HintKey are kept apart from the entries that
// rules match.
func (r *Request) AddEntry(key, value string) {
	if r.added > r.o.MaxDescriptors {
		return
	}
	d := &r.Descriptors[len(r.Descriptors)-1]
	if strings.HasPrefix(key, keyPrefix) && d.keep(key, value) {
		return
	}
	if d.added++; d.added > r.o.MaxEntries {
		return
	}
	r.entries = append(r.entries, descriptors.Entry{Key: key, Value: value})
	d.Entries = r.entries[len(r.entries)-d.added:]
}

// keep keeps the value of an entry that is for Weir. It returns false for other entries.
func (d *Descriptor) keep(key, value string) bool {
	switch key {
	case StartKey:
		d.start = cmp.Or(value, "none")
	case HintKey:
		d.hint = value
	default:
		return false
	}
	return true
}

// Add adds a descriptor with its entries.
func (r *Request) Add(d Descriptor) {
	if added := r.AddDescriptor(); added != nil {
		added.Cost, added.Own = d.Cost, d.Own
	}
	for _, e := range d.Entries {
		r.AddEntry(e.Key, e.Value)
	}
}

// Reset empties the request for reuse. It keeps the memory and drops all references to the old request.
func (r *Request) Reset() {
	clear(r.Descriptors)
	clear(r.entries)
	r.Verdict.reset()
	*r = Request{
		Ctx: context.Background(), Descriptors: r.Descriptors[:0], entries: r.entries[:0], Verdict: r.Verdict, o: r.o,
	}
}

// check returns an error that names the first invalid field, or nil.
func (r *Request) check() error {
	switch {
	case r.Domain == "":
		return invalid("domain: must not be empty; set the domain of Envoy's rate limit filter")
	case r.added == 0:
		return invalid("descriptors: must not be empty; send at least one descriptor")
	case r.added > r.o.MaxDescriptors:
		return invalid("descriptors: must be at most %d, got %d", r.o.MaxDescriptors, r.added)
	}
	for i := range r.Descriptors {
		if err := r.checkEntries(i); err != nil {
			return err
		}
	}
	return nil
}

func (r *Request) checkEntries(i int) error {
	d, most := &r.Descriptors[i], r.o.MaxEntryBytes
	switch {
	case d.added == 0 && r.o.Lenient:
		return nil
	case d.added == 0:
		return invalid("descriptors[%d].entries: must not be empty; send at least one key and value", i)
	case d.added > r.o.MaxEntries:
		return invalid("descriptors[%d].entries: must be at most %d, got %d", i, r.o.MaxEntries, d.added)
	}
	for j, e := range d.Entries {
		switch {
		case e.Key == "" && !r.o.Lenient:
			return invalid("descriptors[%d].entries[%d].key: must not be empty", i, j)
		case len(e.Key) > most:
			return invalid("descriptors[%d].entries[%d].key: must be at most %d bytes, got %d", i, j, most, len(e.Key))
		case len(e.Value) > most:
			return invalid("descriptors[%d].entries[%d].value: must be at most %d bytes, got %d", i, j, most, len(e.Value))
		}
	}
	return nil
}
