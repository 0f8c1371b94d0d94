package admin

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Counters reads and resets the counters of a process. It is safe for concurrent use.
type Counters struct {
	// Rules returns the active rules.
	Rules func() *descriptors.Set
	// Store has the counters. It must not decide from cached denials or leases.
	Store limiter.Store
	// Forget resets a counter in the store and in all processes.
	Forget func(ctx context.Context, key string) (existed bool, err error)
}

// Get returns the counters of a descriptor without charging them. Its error is about the arguments, or wraps
// limiter.ErrUnavailable.
func (c *Counters) Get(ctx context.Context, domain, descriptor string) (*adminapi.KeyState, error) {
	rule, entries, err := matchRule(c.Rules(), domain, descriptor)
	if err != nil {
		return nil, err
	}
	s := &adminapi.KeyState{
		Domain: domain, Descriptor: descriptors.FormatEntries(entries), Rule: rule.Path, Source: rule.Source,
		Mode: rule.Mode.String(), Unlimited: rule.Unlimited, Limits: []adminapi.KeyLimit{},
	}
	for _, l := range rule.Limits {
		key := string(l.AppendKey(nil, entries))
		shown, err := c.peek(ctx, l, key)
		if err != nil {
			return nil, err
		}
		s.Limits = append(s.Limits, *shown)
	}
	return s, nil
}

// peek reads one counter from the store.
func (c *Counters) peek(ctx context.Context, l *descriptors.Limit, key string) (*adminapi.KeyLimit, error) {
	p := l.Policy
	var out [1]limiter.Decision
	peek := limiter.Hit{Key: key, Policy: p, Peek: true, Route: l.Route()}
	if err := c.Store.Take(ctx, []limiter.Hit{peek}, out[:]); err != nil {
		return nil, err
	}
	d := &out[0]
	s := &adminapi.KeyLimit{
		Limit: l.Name, Algorithm: p.Algorithm().String(), Key: key, Store: l.Placement().Store,
		RequestsPerUnit: p.Limit(), Window: descriptors.FormatDuration(p.Window()), Capacity: p.Capacity(),
		Remaining: d.Remaining, ResetAfter: d.ResetAfter.Seconds(), ResetAt: time.Now().Add(d.ResetAfter).UTC(),
	}
	if r := l.Reservation; r != nil {
		s.Estimate, s.AtMost = r.Estimate, r.AtMost
	}
	s.RetryAfter = adminapi.Wait(d.RetryAfter)
	s.Counts, s.Counted = limit.Counter(p, d)
	return s, nil
}

// Reset resets counters, in the store and in all processes. It returns the errors of Get. If it returns an error and a
// result, the result has the counters that are reset; the next counter may be reset, too.
func (c *Counters) Reset(ctx context.Context, t adminapi.ResetRequest) (*adminapi.ResetResult, error) {
	rule, entries, err := matchRule(c.Rules(), t.Domain, t.Descriptor)
	if err != nil {
		return nil, err
	}
	if len(rule.Limits) == 0 {
		return nil, invalid("rule %q (%s) has no limit and therefore no counter", rule.Path, rule.Source)
	}
	f := &adminapi.ResetResult{Domain: t.Domain, Rule: rule.Path, Counters: []adminapi.ResetCounter{}}
	for _, l := range rule.Limits {
		f.Tried = append(f.Tried, string(l.AppendKey(nil, entries)))
	}
	for _, key := range f.Tried {
		existed, err := c.Forget(ctx, key)
		if err != nil {
			return f, err
		}
		f.Counters = append(f.Counters, adminapi.ResetCounter{Key: key, Existed: existed})
	}
	return f, nil
}

// getKey shows everybody the key of a counter, because the values in the key are also in the request.
func (h *handler) getKey(r *http.Request) (*adminapi.KeyState, error) {
	q := r.URL.Query()
	return h.Counters.Get(r.Context(), q.Get("domain"), q.Get("descriptor"))
}

func (h *handler) resetKey(r *http.Request) (*adminapi.ResetResult, error) {
	var target adminapi.ResetRequest
	if err := readJSON(r, &target); err != nil {
		return nil, err
	}
	done, err := h.Counters.Reset(r.Context(), target)
	attrs := []slog.Attr{slog.String("domain", words.Line(words.Shorten(target.Domain)))}
	if done != nil {
		attrs = []slog.Attr{slog.String("domain", done.Domain), slog.String("rule", done.Rule)}
		var hashes []string
		for _, key := range done.Tried {
			hashes = append(hashes, logging.HashKey(key))
		}
		attrs = append(attrs, slog.Int("counters", len(done.Counters)), slog.String("key_hashes", strings.Join(hashes, ",")))
	}
	h.audit(r, "reset", err, attrs...)
	return done, err
}

// maxTop is the maximum number of keys in a response.
const maxTop = 1000

// top serves GET /top?domain=&rule=&by=hits|denied&n=20.
func (h *handler) top(r *http.Request) (keys adminapi.TopKeys, err error) {
	if h.Top == nil {
		return keys, refused(http.StatusNotFound, "this process does not count keys; start Weir with --top-keys 100")
	}
	query := r.URL.Query()
	n, err := number(query, "n", 20, 1, maxTop)
	if err != nil {
		return keys, err
	}
	keys, err = h.Top(topkeys.Query{
		Domain: query.Get("domain"), Rule: query.Get("rule"), N: n, HashValues: !h.seesValues(r),
		By: cmp.Or(adminapi.TopBy(query.Get("by")), adminapi.ByHits),
	})
	if err != nil {
		return keys, invalid("%s", err)
	}
	return keys, nil
}
